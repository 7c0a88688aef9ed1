"""Prompts: files, fixed lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.workload import cut_prompts, random_prompts, read_prompts
from paceline.errors import ConfigError


def test_reads_ids_categories_and_ignores_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": "a", "category": "math", "prompt": "1+1", "source": "x"}) + "\n\n")
    (prompt,) = read_prompts(path)
    assert (prompt.id, prompt.category, prompt.text) == ("a", "math", "1+1")


@pytest.mark.parametrize("text", ["", "{\n", '{"id": 1}\n', "[1]\n"])
def test_bad_files_say_where(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"p\.jsonl"):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_prompts(tmp_path / "absent")


def test_random_prompts_differ_and_repeat() -> None:
    first = random_prompts(4, 8, 100)
    assert first == random_prompts(4, 8, 100) and len({tuple(p) for p in first}) == 4
    assert all(16 <= token < 100 for prompt in first for token in prompt)


def test_cut_prompts_join_short_ones_and_start_over() -> None:
    encoded = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    assert cut_prompts(encoded, 3, 4) == [[1, 2, 3, 4], [9, 1, 2, 3], [4, 5, 6, 7]]
