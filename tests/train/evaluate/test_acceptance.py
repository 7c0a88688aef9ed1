"""Serving acceptance: the engine's own counts, by category and position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.engine.results import SpeculationStats
from paceline.errors import ConfigError
from paceline.train.evaluate.acceptance import Acceptance, held_out_prompts, serving_acceptance
from paceline.train.settings.drafter import AcceptanceSettings
from tests import tiny


def stats(accepted: list[int], drafts: int) -> SpeculationStats:
    made = SpeculationStats("dflash", len(accepted), drafts, drafts * len(accepted), sum(accepted))
    made.accepted_per_position = accepted
    return made


def test_figures_by_hand() -> None:
    found = Acceptance(
        {"all": stats([6, 3], 10), "code": stats([4, 3], 5), "prose": stats([2, 0], 5)}, [9, 8]
    )
    assert found.length() == 1.9 and found.length("code") == 2.4 and found.by_position("prose") == [0.4, 0.0]
    assert found.figures() == {
        "score": 1.9,
        "acceptance_length": 1.9,
        "acceptance_length/code": 2.4,
        "acceptance_length/prose": 1.4,
        "accepted_at/1": 0.6,
        "accepted_at/2": 0.3,
    }


def test_nothing_drafted_is_a_length_of_one() -> None:
    assert Acceptance({"all": stats([0, 0], 0)}, [1]).figures()["score"] == 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    tiny.make_target(path / "target", "tied")
    tiny.make_drafter(path / "drafter", tiny.drafter_for("tied"))
    lines = [{"prompt": f"the {i}", "category": "abc"[i % 3] if i else None} for i in range(9)]
    (path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


def test_the_engine_counts(folder: Path) -> None:
    settings = AcceptanceSettings(prompts=str(folder / "prompts.jsonl"), limit=4)
    prompts = held_out_prompts(folder / "target", settings)
    assert [p.category for p in prompts] == ["", "c", "b", "a"]  # lines 0, 2, 4, 6
    drafts = {"method": "dflash", "model": str(folder / "drafter"), "num_speculative_tokens": 3}
    for heat in (0.0, 0.8):
        found = serving_acceptance(
            folder / "target", drafts, prompts, max_tokens=12, temperature=heat, device="cpu", max_num_seqs=3
        )
        assert set(found.stats) == {"a", "b", "c", "all"} and len(found.lengths) == 4
        parts = [found.stats[name].num_drafts for name in "abc"]
        assert sum(parts) < found.stats["all"].num_drafts, "a prompt without a category counts in all"
        assert 1 <= found.length() <= 4 and len(found.by_position()) == 3
        again = serving_acceptance(
            folder / "target", drafts, prompts, max_tokens=12, temperature=heat, device="cpu", max_num_seqs=1
        )
        assert again.figures() == found.figures(), "figures must not depend on the batch"


def test_a_file_without_prompts_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        held_out_prompts(folder / "target", AcceptanceSettings(prompts=str(tmp_path / "empty.jsonl")))
