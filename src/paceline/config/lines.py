"""JSON lines that a user names: one reader, so that the same mistake reads the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError


def json_lines(path: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, object) of every line that is not blank, one after the other; `where` is FILE, line N.

    `key` is the setting that names the file. Raises: ConfigError for a file that cannot be read, and for a
    line that is no JSON object.
    """
    try:
        with path.open(encoding="utf-8-sig") as lines:  # some editors put a byte order mark first
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _object(line, where, key)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", key=key) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}", key=key) from None


def _object(line: str, where: str, key: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not readable JSON: {error}", key=key) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a JSON object", key=key)
    return value
