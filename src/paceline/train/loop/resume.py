"""Checkpoints to resume from: written at once or not at all, checked when read, the newest sound one wins."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paceline.errors import CapacityError

STATE, SUMS = "state.pt", "state.json"
_CHUNK = 1 << 24
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXTS = tuple(map(os.strerror, _FULL))


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in `folder`, oldest first; sound or not."""
    names = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    return sorted(int(name) for name in names if name.isdecimal())


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write ``step-N`` (tensors on the CPU, numbers and text), then remove all but the newest `keep`.

    A process that dies here leaves the checkpoints before it untouched. Raises CapacityError where the disk
    takes no more.
    """
    place, work = folder / f"step-{step}", folder / f".step-{step}.unfinished"
    for left in folder.glob(".step-*"):  # by processes that died here
        shutil.rmtree(left, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        with disk_faults(place, RuntimeError):
            _write_state(work, step, state)
    except CapacityError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    replace_folder(work, place)
    for old in checkpoint_steps(folder)[:-keep]:
        if old != step:
            shutil.rmtree(folder / f"step-{old}")
    return place


@contextmanager
def disk_faults(place: Path, *words: type[Exception]) -> Iterator[None]:
    """Around whatever writes `place`: a full disk may show at any write, flush or close, and names no file.

    words: what a library raises of its own for a failed write; torch a RuntimeError. Raises CapacityError
    that names `place`; other faults of the system pass.
    """
    known: tuple[type[Exception], ...] = (OSError, *words)
    try:
        yield
    except known as error:
        # Copying a folder gathers what went wrong and keeps no number.
        full = (
            not isinstance(error, OSError)
            or error.errno in _FULL
            or any(t in str(error) for t in _FULL_TEXTS)
        )
        if not full:
            raise
        first = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
        raise CapacityError(
            f"{place} cannot be written, perhaps the disk is full: make room, then --resume ({first})"
        ) from error


def load_newest(folder: Path) -> dict[str, Any] | None:
    """The state of the newest sound checkpoint, None if there is none; every damaged one is warned about."""
    for step in reversed(checkpoint_steps(folder)):
        place = folder / f"step-{step}"
        try:
            return _load(place, step)
        except Exception as exc:
            # Whatever a damaged file provokes in the reader, the one before it is worth a try.
            reason = " ".join(str(exc).split())[:200]
            warnings.warn(f"{place} is damaged and left aside ({reason})", stacklevel=2)
    return None


def replace_folder(new: Path, place: Path) -> None:
    """Put folder `new` where `place` is or is not; at no time is there neither the old nor the new one."""
    aside = place.with_name(f".{place.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    if place.exists():
        place.rename(aside)
    new.rename(place)
    shutil.rmtree(aside, ignore_errors=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a whole file or none."""
    work = path.with_name(f".{path.name}.unfinished")
    with disk_faults(path), work.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    work.replace(path)


def _write_state(work: Path, step: int, state: dict[str, Any]) -> None:
    with (work / STATE).open("wb") as file:
        torch.save({**state, "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    sums = {"step": step, "bytes": (work / STATE).stat().st_size, "crc32": _crc32(work / STATE)}
    write_json(work / SUMS, sums)


def _load(place: Path, step: int) -> dict[str, Any]:
    sums = json.loads((place / SUMS).read_text(encoding="utf-8"))
    size = (place / STATE).stat().st_size
    if size != sums["bytes"]:
        raise ValueError(f"{STATE} has {size} bytes instead of {sums['bytes']}")
    if _crc32(place / STATE) != sums["crc32"]:
        raise ValueError(f"the checksum of {STATE} is wrong")
    state = torch.load(place / STATE, map_location="cpu", weights_only=True)
    if state["step"] != step:
        raise ValueError(f"{STATE} is of step {state['step']}")
    return dict(state)


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value
