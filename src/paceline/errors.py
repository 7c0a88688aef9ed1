"""Every error that paceline raises for something outside itself.

    PacelineError
    ├── ConfigError                  bad configuration or usage            .key
    ├── ModelError                   something is wrong with MODEL
    │   ├── CheckpointError          a tensor or file is unreadable, missing, surplus or mis-shaped
    │   ├── UnsupportedModelError    an architecture that paceline does not run
    │   └── PairingError             a drafter or head that does not fit the target
    ├── RequestError                 one request that cannot be served     .param
    └── CapacityError                it does not fit into memory or blocks

The message is one line and names the fix. Commands print it to stderr and exit with code 2. A broken
invariant of paceline itself is an `AssertionError`, never one of these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

Args = ParamSpec("Args")
BAD_INPUT = 2
"""Exit code of every command and program for what its user can mend."""


class PacelineError(Exception):
    """Base of all errors that a user can cause and can mend."""


class ConfigError(PacelineError):
    """Bad configuration or command-line usage; `key` names the offending option where there is one."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class ModelError(PacelineError):
    """MODEL cannot be used: it is missing, unreadable, or not what it says."""


class CheckpointError(ModelError):
    """A weight file or tensor is unreadable, truncated, missing, surplus or mis-shaped."""


class UnsupportedModelError(ModelError):
    """The checkpoint is sound but of an architecture that paceline does not run."""


class PairingError(ModelError):
    """A drafter or multi-token head does not fit the target model."""


class RequestError(PacelineError):
    """One request cannot be served; `param` names the offending field where there is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(PacelineError):
    """The work does not fit into the memory or the blocks that there are."""


def explained(main: Callable[Args, int | None]) -> Callable[Args, int]:
    """A program's `main` that ends in one line on stderr and `BAD_INPUT` where its user made a mistake, or a
    file cannot be read or written; 0 where it returns nothing, or its reader has left."""

    @wraps(main)
    def run(*args: Args.args, **kwargs: Args.kwargs) -> int:
        try:
            return main(*args, **kwargs) or 0
        except PacelineError as error:
            message = str(error)
        except BrokenPipeError:
            # Without this, Python complains when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            message = (
                f"{error.filename}: {error.strerror}" if error.filename else error.strerror or repr(error)
            )
        print(f"paceline: {message}", file=sys.stderr)
        return BAD_INPUT

    return run
