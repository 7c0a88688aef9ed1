"""Making a checkpoint from another one tensor by tensor: at no time are two weights in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.quantize.output_folder import OutputFolder
from paceline.quantize.shards import (
    ShardWriter,
    TensorSpec,
    divide,
    index_json,
    index_path,
    shard_names,
    write_json,
)
from paceline.quantize.stored import PlainTensor, PlainView

Progress = Callable[[str, int, int], None]
"""Called with the name of a tensor that is done, the bytes written so far and the bytes in all."""
Produce = Callable[["Item"], Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Item:
    """One plain tensor of the input and the tensors that the output has for it."""

    tensor: PlainTensor
    source: PlainView
    outputs: tuple[TensorSpec, ...]

    @property
    def module(self) -> str:
        """The module whose weight this is; for another tensor its own name."""
        return self.tensor.name.removesuffix(".weight")


def unchanged(item: Item) -> Mapping[str, torch.Tensor]:
    """Produce a plain tensor as it is."""
    return {item.outputs[0].name: item.source.read(item.tensor.name)}


def arrange(items: Sequence[Item], shard_size: int) -> dict[str, list[Item]]:
    """Items by the file that they go to."""
    shards = divide([item.outputs for item in items], shard_size)
    return {
        name: [items[i] for i in shard] for name, shard in zip(shard_names(len(shards)), shards, strict=True)
    }


def specs(items: Sequence[Item]) -> list[TensorSpec]:
    """All output tensors of `items`."""
    return [spec for item in items for spec in item.outputs]


def write_files(
    folder: OutputFolder, files: Mapping[str, Sequence[Item]], produce: Produce, progress: Progress | None
) -> None:
    """Write every file that is not there yet, and the index if there are several."""
    total = sum(spec.nbytes for items in files.values() for spec in specs(items))
    done = 0
    for name, items in files.items():
        if (folder.work / name).is_file():  # complete, or it would not have its name
            done += sum(spec.nbytes for spec in specs(items))
            continue
        with ShardWriter(folder.work / name, specs(items)) as writer:
            for item in items:
                for output, tensor in produce(item).items():
                    writer.write(output, tensor)
                done += sum(spec.nbytes for spec in item.outputs)
                if progress is not None:
                    progress(item.tensor.name, done, total)
    if len(files) > 1:
        write_json(index_path(folder.work), index_json({name: specs(items) for name, items in files.items()}))


def fingerprint(folder: Path) -> list[list[object]]:
    """What tells a changed input from the same one: name, size and time of its weight files and config."""
    files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
