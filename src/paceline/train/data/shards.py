"""Samples on disk: a folder of JSON-lines shards and one `meta.json` that says how they came to be.

    meta.json                     {"model": ..., "temperature": ..., "seed": ...}
    shard-00000.jsonl             rows_per_shard samples, one a line
    shard-00001.jsonl.unfinished  being written; takes its final name when it is full, or at the end

A line is `{"id", "category", "thinking", "prompt_ids", "answer_ids", "finish"}`. A shard with its final name
is whole, so a reader never meets half a line; a run that was killed goes on in the unfinished one.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from paceline.errors import ConfigError
from paceline.train.loop.resume import disk_faults

META_FILE = "meta.json"
UNFINISHED = ".unfinished"
ROWS_PER_SHARD = 4096
_ID_FIRST = '{"id": '


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt and one answer to it, as token ids of the target."""

    id: str
    category: str | None
    thinking: bool
    """Whether the prompt asked for reasoning; a drafter serves well only in the mode that it was trained
    in."""
    prompt_ids: list[int]
    answer_ids: list[int]
    """Everything that the target wrote, the token that ended it included."""
    finish: Literal["stop", "length"]
    """"length": cut off at the limit, so that the last token is no end."""

    def to_json(self) -> str:
        """The sample as one line, without the newline; `id` comes first."""
        return json.dumps({name: getattr(self, name) for name in _FIELDS}, ensure_ascii=False)


_FIELDS = ("id", "category", "thinking", "prompt_ids", "answer_ids", "finish")


def read_meta(folder: Path) -> dict[str, Any]:
    """What `meta.json` says of a folder of samples; raises `ConfigError` where there is none."""
    path = Path(folder) / META_FILE
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} is no folder of samples ({path.name}: {error}): make one with `paceline train data`",
            key="data",
        ) from None
    if not isinstance(meta, dict):
        raise ConfigError(f"{path} must hold a JSON object", key="data")
    return meta


def read_samples(folder: Path) -> Iterator[Sample]:
    """Every sample of the whole shards, in the order in which they were written.

    An unfinished shard is left out, with a warning. Raises `ConfigError` for a line that is no sample.
    """
    folder = Path(folder)
    if any(folder.glob(f"shard-*.jsonl{UNFINISHED}")):
        warnings.warn(
            f"{folder}: its last shard is unfinished and left out; the command that wrote it goes on there",
            stacklevel=2,
        )
    for path in shard_files(folder):
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield _parse(line, path, number)


def shard_files(folder: Path) -> list[Path]:
    """The whole shards of a folder, in order."""
    return sorted(Path(folder).glob("shard-*.jsonl"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is there whole or not at all."""
    beside = path.with_name(path.name + UNFINISHED)
    with disk_faults(path):
        beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)


def mend(path: Path) -> None:
    """Cut off a last line that a kill has torn; a missing file is left missing."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            step = min(end, 1 << 16)
            file.seek(end - step)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                file.truncate(end - step + found + 1)
                return
            end -= step
        file.truncate(0)


def foreign_id(sample: Sample, vocab: int) -> int | None:
    """The first id of a sample that a table of `vocab` rows has no row for; None where all have one."""
    ids = (*sample.prompt_ids, *sample.answer_ids)
    if not ids or 0 <= min(ids) <= max(ids) < vocab:
        return None
    return next(token for token in ids if not 0 <= token < vocab)


class ShardWriter:
    """Appends samples to a folder, which may hold some already from a run that was stopped.

    What stands is counted at construction: `done` holds the ids, `rows` their number. A folder that was
    written with another `meta` raises `ConfigError`, so that two kinds of answers never mix; so does one that
    another writer has in hand.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any], rows_per_shard: int = ROWS_PER_SHARD) -> None:
        assert rows_per_shard > 0
        self.folder, self.rows_per_shard = Path(folder), rows_per_shard
        self.folder.mkdir(parents=True, exist_ok=True)
        _settle_meta(self.folder, dict(meta))
        self._lock = lock(self.folder / META_FILE)
        self._file: IO[str] | None = None
        self.done: set[str] = set()
        self._counts = self._take_stock()

    @property
    def rows(self) -> int:
        """Samples in the folder."""
        return sum(self._counts)

    def write(self, sample: Sample) -> None:
        """Append one sample; it is in the operating system's hands on return. Ids must differ."""
        assert sample.id not in self.done, f"sample {sample.id!r} stands already"
        file = self._file or self._open()
        with disk_faults(self._unfinished(len(self._counts) - 1)):
            file.write(sample.to_json() + "\n")
            file.flush()
        self.done.add(sample.id)
        self._counts[-1] += 1
        if self._counts[-1] == self.rows_per_shard:
            self._finish_shard()

    def close(self) -> None:
        """Give the shard in hand its final name; a later `write` goes on behind its last line."""
        self._finish_shard()
        self._lock.close()

    def _finish_shard(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        for path in self.folder.glob(f"shard-*.jsonl{UNFINISHED}"):
            os.replace(path, path.with_name(path.name.removesuffix(UNFINISHED)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close after success; after an error the shard in hand stays unfinished."""
        if kind is None:
            self.close()
            return
        if self._file is not None:
            with suppress(OSError):  # what a full disk has not taken: `error` tells of it
                self._file.close()
            self._file = None
        self._lock.close()

    def _open(self) -> IO[str]:
        """The shard to append to: the last one if it has room, else a new one."""
        if self._lock.closed:
            self._lock = lock(self.folder / META_FILE)
        if not self._counts or self._counts[-1] >= self.rows_per_shard:
            self._counts.append(0)
        path = self._unfinished(len(self._counts) - 1)
        whole = path.with_name(path.name.removesuffix(UNFINISHED))
        if whole.exists():
            os.replace(whole, path)
        self._file = path.open("a", encoding="utf-8")
        return self._file

    def _unfinished(self, index: int) -> Path:
        return self.folder / f"shard-{index:05d}.jsonl{UNFINISHED}"

    def _take_stock(self) -> list[int]:
        """Rows of each shard that stands; their ids go to `done`."""
        whole = shard_files(self.folder)
        for index, path in enumerate(whole):
            if path.name != f"shard-{index:05d}.jsonl":
                raise ConfigError(f"{self.folder} lacks shard {index}: move the folder away", key="out")
        torn = self._unfinished(len(whole))
        mend(torn)
        paths = [*whole, torn] if torn.exists() else whole
        counts = []
        for path in paths:
            ids = list(_ids(path))
            counts.append(len(ids))
            self.done.update(ids)
        return counts


def _settle_meta(folder: Path, meta: dict[str, Any]) -> None:
    if not (folder / META_FILE).exists():
        if shard_files(folder):
            raise ConfigError(f"{folder} holds shards without {META_FILE}: give another folder", key="out")
        write_json(folder / META_FILE, meta)
        return
    stands = read_meta(folder)
    meta = json.loads(json.dumps(meta))
    other = sorted(key for key in {*stands, *meta} if stands.get(key) != meta.get(key))
    if other:
        raise ConfigError(
            f"{folder} was written with another {', '.join(other)}: give another folder, or the old settings",
            key="out",
        )


def lock(path: Path) -> IO[bytes]:
    """Hold a file against other writers until it is closed or the process ends, however that comes about.

    Raises ConfigError while another holds it.
    """
    file = path.open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"another run is writing to {path.parent}: wait for it, or stop it", key="out"
        ) from None
    except OSError:  # a file system without locks; the folder is used unguarded
        pass
    return file


def _ids(path: Path) -> Iterable[str]:
    """Ids of a shard's lines; only as much of a line is parsed as that takes."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.startswith(_ID_FIRST):
                yield decoder.raw_decode(line, len(_ID_FIRST))[0]
            else:
                yield _parse(line, path, number).id


def _parse(line: str, path: Path, number: int) -> Sample:
    try:
        row = json.loads(line)
        for name in ("prompt_ids", "answer_ids"):
            # By types, because a float that is whole, or `true`, compares like an integer.
            if not isinstance(row[name], list) or not set(map(type, row[name])) <= {int}:
                raise TypeError(f"{name} must be a list of whole numbers")
        return Sample(*(row[name] for name in _FIELDS))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}, line {number}: no sample ({error!r}); needed: {', '.join(_FIELDS)}", key="data"
        ) from None
