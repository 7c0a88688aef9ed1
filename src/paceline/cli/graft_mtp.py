"""`paceline graft-mtp`: gives a quantised checkpoint the multi-token head that its quantiser lost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from paceline.cli import options
from paceline.cli.session import emit
from paceline.models.hub import resolve_model


@click.command("graft-mtp", short_help="Give a quantised checkpoint the multi-token head of its base.")
@click.argument("base", metavar="BASE")
@click.argument("quantised", metavar="QUANTISED")
@click.option(
    "--out", type=click.Path(), metavar="DIR", help="Work on a copy in this new folder. Absent: in place."
)
@click.option("--force", is_flag=True, help="Replace DIR, or begin anew after a stopped run.")
@options.json_option
@options.debug_option
def graft_mtp(base: str, quantised: str, out: str | None, force: bool, as_json: bool) -> int:
    """Copy the multi-token head (`mtp.*`) of BASE bit for bit into QUANTISED, and compare hashes afterwards.

    A second run changes nothing.
    """
    from paceline.quantize.graft import graft_mtp as run
    from paceline.quantize.output_folder import OutputOptions

    report = run(
        resolve_model(base),
        resolve_model(quantised),
        None if out is None else Path(out),
        OutputOptions(force=force),
    )
    if as_json:
        emit({**asdict(report), "out": str(report.out)})
    else:
        changed = ", ".join(report.changed) or "nothing, all was in place"
        print(
            f"{report.out}: {len(report.hashes)} tensors of the head, {report.nbytes / 1e6:.1f} MB, hashes "
            f"equal; changed: {changed}"
        )
    return 0
