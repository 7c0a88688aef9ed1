"""`paceline quantize`: a checkpoint in 4 bits, or, with --plan, what it would be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import options
from paceline.cli.progress import progress_bar
from paceline.cli.session import emit, notice
from paceline.config import ModelConfig
from paceline.config.model import Device
from paceline.errors import ConfigError
from paceline.models.hub import DEMO, resolve_model

if TYPE_CHECKING:
    from paceline.quantize.plan import QuantizeOptions, QuantizePlan
    from paceline.quantize.samples import Calibration

SCALES = ("max", "four-over-six", "mse")


@dataclass(frozen=True, slots=True)
class _Flags:
    """The options of the command line, by their names there."""

    recipe: str
    calibration: str | None
    samples: int
    seq_len: int
    mtp: str
    shard_size: str
    scales: Any
    legacy_ab: bool
    requantize: bool
    resume: bool
    force: bool
    device: Device | None

    def options(self, model: str) -> QuantizeOptions:
        """What is written; hub ids become folders."""
        from paceline.quantize.output_folder import OutputOptions
        from paceline.quantize.plan import DROP, KEEP, QuantizeOptions
        from paceline.quantize.shards import parse_size

        return QuantizeOptions(
            recipe=self.recipe,
            scales=self.scales,
            legacy_ab=self.legacy_ab,
            mtp=self.mtp if self.mtp in (KEEP, DROP) else str(resolve_model(self.mtp)),
            shard_size=parse_size(self.shard_size),
            requantize=self.requantize or model == DEMO,
            output=OutputOptions(force=self.force, resume=self.resume),
        )

    def samples_to_run(self) -> Calibration:
        """What activations are measured on."""
        from paceline.engine.resolve import pick_device
        from paceline.quantize.samples import Calibration

        file = Path(self.calibration) if self.calibration else None
        device = str(pick_device(self.device or "auto"))
        return Calibration(file, self.samples, self.seq_len, device)


@click.command(short_help="Write MODEL in 4 bits (NVFP4), in nvidia-modelopt's layout.")
@options.model_argument
@click.argument("out", metavar="OUT", required=False, type=click.Path())
@click.option(
    "--recipe", default="regular", show_default=True, metavar="RECIPE",
    help="regular (attention and MLP), xs (also the large projections of linear attention), or FILE.yaml.",
)  # fmt: skip
@click.option(
    "--calibration", type=click.Path(exists=True, dir_okay=False), metavar="FILE.jsonl",
    help="Samples for activation scales: lines with `messages`, `prompt` or `text`. Absent: built-in ones.",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
    help="The first N samples are used.",
)  # fmt: skip
@click.option(
    "--seq-len", type=click.IntRange(min=1), default=8192, show_default=True, metavar="N",
    help="Longer samples are cut to N tokens.",
)  # fmt: skip
@click.option(
    "--mtp", default="keep", show_default=True, metavar="MTP",
    help="The multi-token head: keep, drop, or the model (folder or hub id) to take it from.",
)  # fmt: skip
@click.option(
    "--shard-size", default="5GB", show_default=True, metavar="SIZE", help="Largest file, such as 500MB."
)
@click.option(
    "--scales", type=click.Choice(SCALES), default="max", show_default=True,
    help="How block scales are chosen: by the largest weight, the better of two, or the best of all.",
)  # fmt: skip
@click.option("--legacy-ab", is_flag=True, help="With xs: also in_proj_a and in_proj_b, as modelopt ≤ 0.44.")
@click.option("--requantize", is_flag=True, help="Decode MODEL first if it is quantised. Implied for demo.")
@click.option("--resume", is_flag=True, help="Go on where a stopped run of the same command left off.")
@click.option("--force", is_flag=True, help="Replace OUT, or begin anew after a stopped run.")
@options.config_option(ModelConfig, "device")
@click.option("--plan", is_flag=True, help="Say what would be written, from headers alone, and exit.")
@options.json_option
@options.debug_option
def quantize(model: str, out: str | None, plan: bool, as_json: bool, **given: Any) -> int:
    """Write MODEL (a folder in Hugging Face layout, a hub id, or `demo`) into the new folder OUT, in NVFP4.

    OUT appears only when it is complete; a stopped run leaves OUT.unfinished, from which --resume goes on.
    """
    flags = _Flags(**given)
    if out is None and not plan:
        raise ConfigError("name the folder OUT that is to be written (--plan alone does without)", key="out")
    folder, chosen, calibration = resolve_model(model), flags.options(model), flags.samples_to_run()
    from paceline.quantize.export import quantize as run
    from paceline.quantize.plan import plan_quantization

    planned = plan_quantization(folder, chosen)
    if flags.calibration is not None and not planned.calibrated:
        notice("--calibration has no effect: no format of this recipe quantises activations")
    if plan:
        emit(planned.to_json()) if as_json else _show_plan(planned, calibration)
        return 0
    with progress_bar() as advance:
        report = run(folder, Path(str(out)), chosen, calibration, advance)
    result = {
        "out": str(report.out),
        "count": report.count,
        "bytes": report.nbytes,
        "files": report.files,
        "modules": report.modules,
    }
    if as_json:
        emit(result)
    else:
        formats = ", ".join(f"{count} {fmt}" for fmt, count in report.modules.items())
        print(
            f"{report.out}: {report.count} tensors, {report.nbytes / 1e9:.3f} GB in {report.files} file(s); "
            f"linear modules: {formats}"
        )
    return 0


def _show_plan(plan: QuantizePlan, calibration: Calibration) -> None:
    formats = list(plan.formats.values())
    for fmt in sorted(set(formats)):
        print(f"{fmt:14} {formats.count(fmt):6} linear modules")
    print(
        f"{'written':14} {len(plan.tensors):6} tensors, {plan.nbytes / 1e9:.3f} GB, {len(plan.files)} file(s)"
    )
    if not plan.calibrated:
        print("no calibration: no format of this recipe quantises activations")
    else:
        config = plan.view.checkpoint.config
        hidden = config.get("text_config", config)["hidden_size"]
        states = calibration.samples * calibration.seq_len * hidden * 2 / 1e9
        print(
            f"calibration on {calibration.device}: {calibration.samples} samples of at most "
            f"{calibration.seq_len} tokens, one layer's weights at a time; hidden states in RAM, at most "
            f"{states:.2f} GB"
        )
