"""From what a user calls a model to a folder: a path, a hub id, `demo`, `demo-sliding` for a drafter."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import shorten
from typing import Literal

from paceline.errors import ModelError

DEMO = "demo"
DEMO_SLIDING = "demo-sliding"
"""The demo's second drafter, whose layers see a window of the context."""
ModelPart = Literal["target", "drafter"]

_PACKAGE = Path(__file__).resolve().parents[1]
# An installed package carries the demo inside; a checkout has it at its root.
_DEMO_FOLDERS = (_PACKAGE / "demo", _PACKAGE.parents[1] / "demo")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Everything that paceline reads: configs, weights, tokenizer, chat template. Never a pickle.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


def resolve_model(name: str | Path, part: ModelPart = "target") -> Path:
    """The folder of model `name`: an existing folder, `demo` (its `part`), `demo-sliding` (a drafter), or a
    hub id, downloaded with progress.

    Raises: ModelError, one line, where there is no such folder, the demo is not installed, or the download
    fails.
    """
    text = str(name)
    if text == DEMO:
        return _demo(part)
    if text == DEMO_SLIDING and part == "drafter":
        return _demo("drafter-sliding")
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return folder
    if text and folder.exists():
        raise ModelError(f"model {text} is a file; name its folder")
    if not _HUB_ID.fullmatch(text):
        names = repr(DEMO) if part == "target" else f"{DEMO!r}, or {DEMO_SLIDING!r}"
        raise ModelError(f"model folder {text!r} does not exist (nor is it a hub id owner/name, or {names})")
    return _download(text)


def _demo(part: str) -> Path:
    for folder in _DEMO_FOLDERS:
        if (folder / part / "config.json").is_file():
            return folder / part
    places = " or ".join(str(folder / part) for folder in _DEMO_FOLDERS)
    raise ModelError(f"the demo {part} is not installed: expected {places}")


def _download(hub_id: str) -> Path:
    # Imported late: it takes half a second, and a local folder needs none of it.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # its own, httpx's and the system's errors have no common base
        reason = shorten(str(error), 120, placeholder=" ...") or "no reason given"
        raise ModelError(
            f"model {hub_id}: no such folder, and it could not be downloaded from the hub: check the id and "
            f"the network, or name a local folder ({type(error).__name__}: {reason})"
        ) from None
