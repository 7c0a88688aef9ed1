"""An output folder that appears whole or not at all.

Everything is written to `OUT.unfinished` beside OUT, which takes OUT's place at the very end. A stopped run
leaves that folder; the same command with `resume` goes on from the shards that are complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import CapacityError, ConfigError
from paceline.models.checkpoint import INDEX_FILE, read_json
from paceline.quantize.shards import write_json

_STATE = ".paceline-export.json"
_SLACK = 64 << 20
_COPIED = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_OURS = ("config.json", "hf_quant_config.json", INDEX_FILE)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How an output folder is treated."""

    force: bool = False
    """Replace OUT if it exists, and begin anew where a stopped run left something."""
    resume: bool = False
    """Go on where a stopped run of the same command left off."""


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """A folder in the making."""

    out: Path
    work: Path

    @classmethod
    def begin(
        cls, out: Path, sources: Sequence[Path], fingerprint: object, size: int, options: OutputOptions
    ) -> OutputFolder:
        """Prepare `OUT.unfinished` for an output of `size` bytes.

        sources: folders that are read and so must not be OUT. fingerprint: any JSON value that says what is
        being made; a resumed run must have the same.

        Raises: ConfigError where OUT or a stopped run's folder is in the way, CapacityError for too small a
        disk.
        """
        if options.force and options.resume:
            raise ConfigError("--force begins anew and --resume goes on; give one of them", key="resume")
        folder = cls(out, out.with_name(f"{out.name}.unfinished"))
        _check_place(out, sources, options)
        digest = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()
        if folder.work.exists():
            folder._take_over(digest, options)
        done = sum(file.stat().st_size for file in folder.work.glob("*")) if folder.work.exists() else 0
        _check_space(out, size - done)
        folder.work.mkdir(parents=True, exist_ok=True)
        write_json(folder.work / _STATE, {"fingerprint": digest})
        return folder

    def copy_other_files(self, source: Path) -> None:
        """Copy tokenizer, chat template and the like: every small file that is not ours to write."""
        for file in sorted(source.iterdir()):
            wanted = file.suffix in _COPIED or file.name.startswith(("LICENSE", "NOTICE"))
            if file.is_file() and wanted and file.name not in _OURS:
                shutil.copyfile(file, self.work / file.name)

    def give_up(self) -> None:
        """After an error: leave nothing behind, unless there is work that `resume` can go on from."""
        if not any(file.name != _STATE for file in self.work.iterdir()):
            shutil.rmtree(self.work)

    def finish(self) -> None:
        """Put the folder in OUT's place."""
        (self.work / _STATE).unlink()
        old = self.out.with_name(f"{self.out.name}.replaced")
        if self.out.exists():
            self.out.rename(old)
        self.work.rename(self.out)
        if old.exists():
            shutil.rmtree(old)

    def _take_over(self, digest: str, options: OutputOptions) -> None:
        state = self.work / _STATE
        if options.force:
            shutil.rmtree(self.work)
        elif not options.resume:
            raise ConfigError(
                f"{self.work} was left by a stopped run; give --resume to go on or --force to begin anew",
                key="resume",
            )
        elif not state.is_file() or read_json(state).get("fingerprint") != digest:
            raise ConfigError(
                f"{self.work} was left by a run with another model or other options; "
                "repeat those, or give --force to begin anew",
                key="resume",
            )


def _check_place(out: Path, sources: Sequence[Path], options: OutputOptions) -> None:
    if any(out.resolve() == source.resolve() for source in sources):
        raise ConfigError(f"{out} is also what is read; name another folder for the output", key="out")
    if not out.exists():
        return
    if not options.force:
        raise ConfigError(f"{out} exists; give --force to replace it", key="force")
    # --force replaces a model, never somebody's other folder.
    if not out.is_dir() or (any(out.iterdir()) and not _is_model(out)):
        raise ConfigError(f"{out} is not a model folder, so --force does not replace it", key="force")


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _check_space(out: Path, size: int) -> None:
    place = out.absolute().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if size + _SLACK > free:
        raise CapacityError(
            f"{out} needs {(size + _SLACK) / 1e9:.2f} GB and {place} has {free / 1e9:.2f} GB free"
        )
