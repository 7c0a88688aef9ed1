"""Settings of `paceline train mtp`: the multi-token head of a target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.train.settings.base import Section
from paceline.train.settings.drafter import AcceptanceSettings, LossSettings, SampleSettings, Text
from paceline.train.settings.optim import OptimSettings, PositiveInt


class HeadExportSettings(Section):
    """How a head is written."""

    form: Literal["head", "model"] | None = None
    """model: a copy of the target with the head in it, which `--speculative-config` takes at once; head: a
    folder with the head's tensors alone, which `paceline graft-mtp` takes as BASE. Absent: model, and head
    where the target is quantised."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the head's stored weights."""


class HeadSettings(Section):
    """A configuration of `paceline train mtp`."""

    target: Text
    """The model that gets the head: a local folder, a hub id, or `demo`."""
    out: Text
    """The folder of the run: last/ and best/ are published heads, or models with them."""
    data: SampleSettings
    """What is learnt from."""
    steps: Annotated[int, Field(ge=1, le=3)] = 3
    """Tokens guessed one after the other, each from the head's own last output, as at serving."""
    init_from: Text | None = None
    """A model whose head is continued; may be the target itself."""
    num_anchors: PositiveInt = 512
    """Places of a row where guessing begins, drawn anew at every step."""
    loss: LossSettings = LossSettings()
    """What guesses are compared with, and how much each counts."""
    optim: OptimSettings
    """How it is trained, and for how long."""
    evaluate: AcceptanceSettings | None = None
    """Held-out prompts; absent: nothing is measured, and there is no best/."""
    export: HeadExportSettings = HeadExportSettings()
    """What is written."""
