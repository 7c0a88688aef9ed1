"""paceline: speculative decoding for hybrid language models, with no change to the text.

`LLM` and `SamplingParams` are loaded at first use, so that `paceline --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    ModelError,
    PacelineError,
    PairingError,
    RequestError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from paceline.config.sampling import SamplingParams
    from paceline.engine.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "ModelError",
    "PacelineError",
    "PairingError",
    "RequestError",
    "SamplingParams",
    "UnsupportedModelError",
    "__version__",
]

_LAZY = {"LLM": "paceline.engine.llm", "SamplingParams": "paceline.config.sampling"}


def __getattr__(name: str) -> Any:
    """Import the heavy exports at first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
