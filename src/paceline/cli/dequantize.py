"""`paceline dequantize`: a quantised checkpoint back to plain weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli import options
from paceline.cli.progress import progress_bar
from paceline.cli.session import emit
from paceline.models.hub import resolve_model


@click.command(short_help="Write a quantised checkpoint as plain weights.")
@options.model_argument
@click.argument("out", metavar="OUT", type=click.Path())
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True,
    help="What decoded weights are rounded to.",
)  # fmt: skip
@click.option(
    "--shard-size", default="5GB", show_default=True, metavar="SIZE", help="Largest file, such as 500MB."
)
@click.option("--resume", is_flag=True, help="Go on where a stopped run of the same command left off.")
@click.option("--force", is_flag=True, help="Replace OUT, or begin anew after a stopped run.")
@options.json_option
@options.debug_option
def dequantize(
    model: str, out: str, dtype: Any, shard_size: str, resume: bool, force: bool, as_json: bool
) -> int:
    """Decode MODEL (NVFP4, W4A16_NVFP4, FP8, mixed, compressed-tensors) into the new folder OUT.

    Names are the original ones; transformers loads the result.
    """
    from paceline.quantize.dequantize import dequantize as run
    from paceline.quantize.output_folder import OutputOptions
    from paceline.quantize.shards import parse_size

    size, output = parse_size(shard_size), OutputOptions(force=force, resume=resume)
    with progress_bar() as advance:
        report = run(resolve_model(model), Path(out), dtype, shard_size=size, output=output, progress=advance)
    result = {
        "out": str(report.out),
        "decoded": report.decoded,
        "count": report.count,
        "bytes": report.nbytes,
        "files": report.files,
    }
    if as_json:
        emit(result)
    else:
        print(
            f"{report.out}: {report.count} tensors, {report.decoded} of them decoded, "
            f"{report.nbytes / 1e9:.3f} GB in {report.files} file(s)"
        )
    return 0
