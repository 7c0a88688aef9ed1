"""Writing the quantised checkpoint that a plan describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paceline import __version__
from paceline.errors import CheckpointError
from paceline.quantize import fp8, nvfp4
from paceline.quantize.calibration import Calibration, measure_inputs
from paceline.quantize.layout import FOUR_BIT, fused_group
from paceline.quantize.nvfp4 import E2M1_MAX, E4M3_MAX
from paceline.quantize.output_folder import OutputFolder
from paceline.quantize.plan import QuantizeOptions, QuantizePlan, plan_quantization
from paceline.quantize.quant_config import HF_QUANT_CONFIG, describe, final_config
from paceline.quantize.shards import DTYPES, write_json
from paceline.quantize.stream import Item, Progress, fingerprint, write_files

RECORD = "paceline_quantization.json"
_INPUTS = ".paceline-inputs.json"


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What was written."""

    out: Path
    count: int
    nbytes: int
    files: int
    modules: dict[str, int]
    """Linear modules by format."""


def quantize(
    model: Path,
    out: Path,
    options: QuantizeOptions,
    calibration: Calibration,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Quantise the folder `model` into the new folder `out`, in nvidia-modelopt's layout.

    Activations are measured on `calibration` unless no format of the recipe quantises them. `out` appears
    only when it is complete; a stopped run leaves `OUT.unfinished`.

    Raises: whatever `plan_quantization` and `measure_inputs` raise; ConfigError where `out` is in the way,
    CheckpointError for a weight that is NaN or infinite, CapacityError where the disk is too small.
    """
    plan = plan_quantization(model, options)
    made_of: Any = [_said(options), asdict(calibration), fingerprint(model), plan.to_json()]
    read = {item.source.checkpoint.path for items in plan.files.values() for item in items}
    made_of = json.loads(json.dumps(made_of, default=str))
    folder = OutputFolder.begin(out, [model, *read], made_of, plan.nbytes, options.output)
    try:
        inputs = _inputs(folder, model, plan, calibration, progress)
        write_files(folder, plan.files, _Producer(plan, options, inputs), progress)
        _write_json_files(folder, model, plan, options, calibration)
    except BaseException:
        folder.give_up()
        raise
    folder.finish()
    formats = list(plan.formats.values())
    modules: dict[str, int] = {fmt: formats.count(fmt) for fmt in sorted(set(formats))}
    return QuantizeReport(out, len(plan.tensors), plan.nbytes, len(plan.files), modules)


class _Producer:
    """Makes the output tensors of one item."""

    def __init__(self, plan: QuantizePlan, options: QuantizeOptions, inputs: Mapping[str, float]) -> None:
        self._plan, self._choice, self._inputs = plan, options.scales, inputs
        self._amax: dict[str, torch.Tensor] = {}

    def __call__(self, item: Item) -> Mapping[str, torch.Tensor]:
        module, weight = item.module, item.source.read(item.tensor.name)
        fmt = self._plan.formats.get(module, "bf16")
        if fmt == "bf16":
            if weight.dtype in (torch.bfloat16, torch.float32) and weight.numel():
                _largest(weight, item.tensor.name)
            return {item.tensor.name: weight.to(DTYPES[item.outputs[0].dtype])}
        amax = self._group_amax(item, weight)
        tensors: dict[str, torch.Tensor]
        if fmt in FOUR_BIT:
            matrix = nvfp4.quantize(weight, nvfp4.global_scale(amax, self._choice), self._choice)
            tensors = {"weight": matrix.packed, "weight_scale": matrix.scales}
            tensors["weight_scale_2"] = matrix.global_scale
        else:
            scale = fp8.global_scale(amax)
            tensors = {"weight": fp8.quantize(weight, scale), "weight_scale": scale}
        if module in self._inputs:
            largest = E2M1_MAX * E4M3_MAX if fmt in FOUR_BIT else E4M3_MAX
            tensors["input_scale"] = torch.tensor(self._inputs[module]) / largest
        return {f"{module}.{part}": tensor for part, tensor in tensors.items()}

    def _group_amax(self, item: Item, weight: torch.Tensor) -> torch.Tensor:
        """The largest magnitude among all weights that share a global scale with this one."""
        self._amax.setdefault(item.module, _largest(weight, item.tensor.name))
        group = fused_group(item.module, self._plan.formats)
        for other in group:
            if other not in self._amax:
                name = f"{other}.weight"
                self._amax[other] = _largest(item.source.read(name), name)
        return torch.stack([self._amax[other] for other in group]).amax()


def _largest(weight: torch.Tensor, name: str) -> torch.Tensor:
    low, high = torch.aminmax(weight)  # unlike abs() this takes no memory
    largest = torch.maximum(-low, high).float()
    if not bool(largest.isfinite()):
        raise CheckpointError(f"tensor {name} holds NaN or infinite weights; fetch the model again")
    return largest


def _inputs(
    folder: OutputFolder,
    model: Path,
    plan: QuantizePlan,
    calibration: Calibration,
    progress: Progress | None,
) -> Mapping[str, float]:
    """Largest input of every module that needs one; measured once, a resumed run reads them back."""
    if not plan.calibrated:
        return {}
    kept = folder.work / _INPUTS
    if not kept.is_file():
        write_json(kept, measure_inputs(model, plan.view, plan.calibrated, calibration, progress))
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def _write_json_files(
    folder: OutputFolder,
    model: Path,
    plan: QuantizePlan,
    options: QuantizeOptions,
    calibration: Calibration,
) -> None:
    names = [spec.name for spec in plan.tensors]
    said = describe(plan.formats, names, plan.recipe.kv_cache)
    folder.copy_other_files(model)
    write_json(folder.work / "config.json", final_config(plan.view.checkpoint.config, said.section, names))
    write_json(folder.work / HF_QUANT_CONFIG, said.separate)
    record: dict[str, Any] = {"paceline": __version__, "source": model.name, **_said(options)}
    record["rules"] = [rule.model_dump() for rule in plan.recipe.rules]
    record["calibration"] = calibration.summary() if plan.calibrated else None
    write_json(folder.work / RECORD, record)
    (folder.work / _INPUTS).unlink(missing_ok=True)


def _said(options: QuantizeOptions) -> dict[str, Any]:
    """The options that shape the content."""
    values = asdict(options)
    del values["output"]
    return values
