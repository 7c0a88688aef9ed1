"""The embedded demo in 4 bits: its text is the same with drafts as without, and drafts are accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import LLM
from paceline.bench.prompts import DEMO_PROMPTS
from paceline.cli.main import main
from paceline.quantize.acceptance import Question, answer

DEMO = Path(__file__).parents[2] / "demo"
CARD = json.loads((DEMO / "model_card.json").read_text())
PROPOSERS = {"dflash": {"method": "dflash", "model": "demo"}, "mtp": {"method": "mtp"}}
QUESTIONS = [Question(prompt.category, prompt.category, prompt.text) for prompt in DEMO_PROMPTS]


@pytest.fixture(scope="module")
def xs(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "xs"
    assert main(("quantize", "demo", str(out), "--recipe", "xs", "--device", "cpu")) == 0
    return str(out)


def test_the_card_is_of_the_weights_that_were_trained():
    recorded = json.loads((DEMO / "manifest.json").read_text())["files"]
    for name, digest in CARD["bf16"]["weights"].items():
        assert digest in json.dumps(recorded[name])
    for variant in ("bf16", "xs"):
        for figures in CARD[variant]["acceptance"].values():
            assert set(figures) == set(PROPOSERS)
            assert all(row["acceptance_length"] >= 1 for rows in figures.values() for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", PROPOSERS)
def test_drafts_are_accepted_as_before(xs, method):
    tokens = CARD["conditions"]["prompts"]["demo"]["max_tokens"]
    found = answer(xs, QUESTIONS, PROPOSERS[method], tokens, "cpu").figures()["all"]["acceptance_length"]
    before = CARD["bf16"]["acceptance"]["demo"][method]["all"]["acceptance_length"]
    assert found >= 0.9 * before


@pytest.mark.slow
@pytest.mark.parametrize("method", PROPOSERS)
def test_speculation_leaves_its_text_alone(xs, method, capsys):
    config = json.dumps(PROPOSERS[method])
    assert main(("verify", xs, "--speculative-config", config, "--batch", "6", "--max-tokens", "48")) == 0
    assert "text identical: yes" in capsys.readouterr().out


@pytest.mark.slow
def test_packed_weights_give_the_same_text(xs):
    texts = []
    for held in ("dequantized", "packed"):
        llm = LLM(xs, device="cpu", quantized_weights=held)
        params = llm.default_sampling_params(temperature=0.0, max_tokens=24)
        texts.append(
            [output.token_ids for output in llm.generate([p.text for p in DEMO_PROMPTS[:2]], params)]
        )
        llm.close()
    assert texts[0] == texts[1]
