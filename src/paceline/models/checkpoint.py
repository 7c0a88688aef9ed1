"""Reading a folder in Hugging Face layout: config, tensor headers, then weights.

Headers come first: every check (names, shapes, dtypes, truncated files) is done before any weight is read,
so a bad folder fails in milliseconds and nothing is half loaded. Only safetensors files are read; a pickle
can run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from paceline.errors import CheckpointError, ModelError, UnsupportedModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
Shape = tuple[int, ...]
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a safetensors header says of one tensor."""

    shape: Shape
    dtype: str
    """safetensors' own name: BF16, F32, ..."""
    file: Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened folder: its JSON files and the headers of all its tensors; no weight is in memory yet."""

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Open a folder with `config.json` and safetensors.

        Raises: CheckpointError (one line) for a missing folder or file, unreadable JSON, a truncated file,
        or an index that disagrees with its files.
        """
        folder = Path(path)
        config = read_config(folder)
        generation = folder / "generation_config.json"
        return cls(
            path=folder,
            config=config,
            generation_config=read_json(generation) if generation.exists() else {},
            tensors=_read_headers(folder),
        )

    @property
    def config_file(self) -> str:
        """The name of the config file for messages."""
        return str(self.path / "config.json")

    def weight(self, name: str) -> torch.Tensor:
        """Read one tensor into CPU memory, as stored."""
        info = self.tensors[name]
        with _opened(info.file) as file:
            return file.get_tensor(name)


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder. Raises: CheckpointError where folder or file is missing or
    unreadable."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"model folder {folder} {what}")
    if not (folder / "config.json").exists():
        for inner in (folder / "best", folder / "last"):  # of a training run
            if (inner / "config.json").exists():
                raise CheckpointError(f"{folder} is the folder of a training run, no model: name {inner}")
    return read_json(folder / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises: CheckpointError naming the file and what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist; a model folder holds config.json and safetensors"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {_one_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def check_tensors(
    stored: Mapping[str, TensorInfo],
    expected: Mapping[str, Shape],
    origin: str,
    missing_error: type[ModelError] = CheckpointError,
) -> None:
    """Compare headers with what the config asks for; names must match exactly.

    Raises: `missing_error` for a missing tensor, CheckpointError for a surplus or mis-shaped one, naming the
    tensor and both shapes; UnsupportedModelError for a dtype other than BF16 and F32.
    """
    missing = [
        f"tensor {n} is missing (expected shape {_text(s)})" for n, s in expected.items() if n not in stored
    ]
    if missing:
        raise missing_error(_first(origin, missing))
    wrong = [
        f"tensor {name} has shape {_text(stored[name].shape)}, config.json asks for {_text(shape)}"
        for name, shape in expected.items()
        if stored[name].shape != shape
    ]
    wrong += [
        f"surplus tensor {name} of shape {_text(info.shape)} (config.json asks for none: shape none)"
        for name, info in stored.items()
        if name not in expected
    ]
    if wrong:
        raise CheckpointError(_first(origin, wrong))
    for name in expected:
        if stored[name].dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{origin}: tensor {name} is stored as {stored[name].dtype}; paceline loads BF16 and F32"
            )


def resolve_dtype(requested: str | torch.dtype, config_dtype: Any, sample: TensorInfo) -> torch.dtype:
    """The model dtype: as requested, else as the config says, else as stored.

    `requested` is "auto", "bfloat16", "float32" or a torch dtype. Raises: UnsupportedModelError for any
    other.
    """
    if isinstance(requested, torch.dtype):
        requested = str(requested).removeprefix("torch.")
    if requested == "auto":
        stored = _DTYPES.get(sample.dtype)
        requested = str(config_dtype or stored or sample.dtype).removeprefix("torch.")
    if requested not in ("bfloat16", "float32"):
        raise UnsupportedModelError(
            f"dtype {requested!r} is not supported; choose --dtype bfloat16 or float32"
        )
    return torch.bfloat16 if requested == "bfloat16" else torch.float32


def _read_headers(folder: Path) -> dict[str, TensorInfo]:
    """Headers of the single file, or of every file that the index names."""
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).is_file():
        return _header(folder / SINGLE_FILE)
    if not index.is_file():
        raise CheckpointError(f"{folder} has no weights: expected {SINGLE_FILE} or {INDEX_FILE}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map of tensor names to file names")
    tensors: dict[str, TensorInfo] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise CheckpointError(f"{index} names {file!r}, which is not a file of this folder")
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder / file} is named by {INDEX_FILE} but does not exist")
        tensors.update({n: i for n, i in _header(folder / file).items() if weight_map.get(n) == file})
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise CheckpointError(_first(str(index), [f"tensor {n} is not in {weight_map[n]}" for n in lost]))
    return tensors


def _header(path: Path) -> dict[str, TensorInfo]:
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in list(file.keys())}
        return {name: TensorInfo(tuple(s.get_shape()), s.get_dtype(), path) for name, s in slices.items()}


def _opened(path: Path) -> Any:
    """An open safetensors file; opening checks the header and that the file is as long as it says."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({_one_line(error)}); fetch it again"
        ) from None


def _first(origin: str, problems: Sequence[str]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{origin}: {problems[0]}{more}"


def _text(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
