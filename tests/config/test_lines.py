"""JSON lines that a user names."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.lines import json_lines
from paceline.errors import ConfigError


def test_objects_come_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"a": 1}\n\n  \r\n{"b": "\u2028"}\n{"c": 2}'.encode())
    assert list(json_lines(path, "prompts")) == [
        (f"{path}, line 1", {"a": 1}),
        (f"{path}, line 4", {"b": "\u2028"}),
        (f"{path}, line 5", {"c": 2}),
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2: not readable JSON"),
        (b"[" * 100_000, "line 1: not readable JSON"),
        (b"[1]\n", "line 1: must be a JSON object"),
        (b'{"a": "\xff"}\n', "is not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        list(json_lines(path, "prompts"))
    assert str(path) in str(raised.value) and told in str(raised.value) and raised.value.key == "prompts"
