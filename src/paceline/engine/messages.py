"""What the engine's process and its client say to each other: plain data, safe to pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.engine.request import Request
from paceline.engine.results import StreamEvent
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class Add:
    """Run a request; answered by `Accepted` or `Refused`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request before the next step; nothing more comes of it."""

    id: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by `News` without events, between two steps."""


@dataclass(frozen=True, slots=True)
class ForgetPrefixes:
    """Forget every known prefix; answered by `News` without events."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process; what is unfinished is dropped."""


Command: TypeAlias = Add | Abort | Ping | ForgetPrefixes | Stop


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a loaded engine is, as far as the server must know."""

    folder: str
    vocab_size: int
    max_model_len: int
    num_drafts: int
    method: str | None
    max_num_seqs: int
    generation_config: dict[str, Any]
    plan: dict[str, Any]
    """`LLM.plan()`."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How full the engine is after a step."""

    running: int
    waiting: int
    """Sequences in line or in host memory."""
    blocks_used: int
    blocks_total: int
    slots_used: int
    slots_total: int
    preemptions: int
    """Since the start, as all that follows."""
    prefix_queries: int
    """Prompt tokens of admitted sequences."""
    prefix_hits: int
    """Those of them that were not read again."""
    checkpoints: int
    """Recurrent states that are kept now."""

    @property
    def cache_usage(self) -> float:
        """Share of the KV blocks that sequences hold, 0 to 1."""
        return self.blocks_used / self.blocks_total


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is loaded and has written a token."""

    info: EngineInfo
    figures: Figures


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request is in line."""

    id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A request can never run, and why."""

    id: str
    error: PacelineError


@dataclass(frozen=True, slots=True)
class News:
    """What one step gave."""

    events: list[StreamEvent]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine is gone; `error` says why (before `Ready`: why it could not start)."""

    error: PacelineError


Message: TypeAlias = Ready | Accepted | Refused | News | Ended
