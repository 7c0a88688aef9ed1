"""A quantised checkpoint back to plain tensors under their original names, for tools that cannot read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from paceline.errors import ConfigError
from paceline.models.checkpoint import Checkpoint
from paceline.quantize.output_folder import OutputFolder, OutputOptions
from paceline.quantize.quant_config import final_config
from paceline.quantize.shards import DTYPES, TensorSpec, write_json
from paceline.quantize.stored import PlainView
from paceline.quantize.stream import Item, Progress, arrange, fingerprint, specs, write_files

PlainDtype = Literal["bfloat16", "float32"]
_STORED = {"bfloat16": "BF16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class DequantizeReport:
    """What was written."""

    out: Path
    decoded: int
    """Modules that were quantised."""
    count: int
    nbytes: int
    files: int


def dequantize(
    model: Path,
    out: Path,
    dtype: PlainDtype = "bfloat16",
    *,
    shard_size: int = 5_000_000_000,
    output: OutputOptions | None = None,
    progress: Progress | None = None,
) -> DequantizeReport:
    """Decode every quantised weight of the folder `model` into the new folder `out`.

    Decoded weights are rounded to `dtype`; all other tensors stay byte for byte as they are.

    Raises: ConfigError where nothing is quantised or `out` is in the way, CheckpointError or
    UnsupportedModelError for a checkpoint that cannot be decoded, CapacityError where the disk is too small.
    """
    view = PlainView(Checkpoint.open(model))
    if not view.quantized:
        raise ConfigError(f"{model} is not quantised; there is nothing to decode")
    items = [
        Item(t, view, (TensorSpec(t.name, t.dtype if t.stored == "plain" else _STORED[dtype], t.shape),))
        for t in view
    ]
    files = arrange(items, shard_size)
    nbytes = sum(spec.nbytes for spec in specs(items))
    made_of = ["dequantize", dtype, shard_size, fingerprint(model)]
    folder = OutputFolder.begin(out, [model], made_of, nbytes, output or OutputOptions())
    try:
        write_files(folder, files, _decoded, progress)
        folder.copy_other_files(model)
        write_json(folder.work / "config.json", _plain_config(view, dtype))
    except BaseException:
        folder.give_up()
        raise
    folder.finish()
    return DequantizeReport(out, len(view.quantized), len(items), nbytes, len(files))


def _decoded(item: Item) -> Mapping[str, torch.Tensor]:
    output = item.outputs[0]
    return {output.name: item.source.read(item.tensor.name).to(DTYPES[output.dtype])}


def _plain_config(view: PlainView, dtype: PlainDtype) -> dict[str, Any]:
    config = final_config(view.checkpoint.config, None, view.tensors)
    for level in (config, config.get("text_config")):
        if isinstance(level, dict):
            for key in ("dtype", "torch_dtype"):
                if key in level:
                    level[key] = dtype
    return config
