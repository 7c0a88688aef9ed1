"""What training computes is what the engine serves: the same drafts, from every layout of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.models.registry import read_target_spec
from paceline.train.draft.anchors import Anchors
from paceline.train.draft.export import TargetFacts, export_drafter
from paceline.train.draft.initial import continued_drafter
from paceline.train.draft.task import DraftBatch, DrafterTask
from tests import tiny
from tests.train.draft.harness import (
    SHAPE,
    SLIDING,
    EngineTarget,
    learn,
    make_task,
    one_document,
    rounds,
)

YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0,
}  # fmt: skip
PROMPT = [5, 9, 40, 7, 33, 60, 12, 18, 22]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("plain", SHAPE),
    "sliding": ("tied", SLIDING),
    "sliding, both ways": ("plain", {**SLIDING, "is_causal": False}),
    "yarn": (
        "plain",
        {"published": {"extra": {"rope_scaling": YARN}, "num_attention_heads": 4, "num_key_value_heads": 1}},
    ),
    "three taps": ("tied", {**SHAPE, "target_layer_ids": (0, 1, 3), "block_size": 6}),
}


def facts(folder: Path, target: EngineTarget) -> TargetFacts:
    spec = read_target_spec(folder)
    return TargetFacts(
        "target", ("Qwen3_5ForCausalLM",), spec.num_layers, spec.eos_ids,
        lambda: {
            "embed_tokens.weight": target.embed(torch.arange(spec.vocab_size)),
            "lm_head.weight": target.head_weight,
        },
    )  # fmt: skip


def trained_side(task: DrafterTask, target: EngineTarget, ids: list[int], prompt: int) -> list[list[int]]:
    """The drafts of every position of a text as an anchor."""
    tokens = one_document(ids, prompt)
    at = torch.arange(len(ids))[None]
    anchors = Anchors(at, torch.zeros_like(at), torch.ones_like(at, dtype=torch.bool))
    with torch.no_grad():
        guesses = task.guesses(tokens, task._features(tokens), anchors)
        return target.logits(guesses.hidden)[0].argmax(-1).tolist()


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize("name", CASES)
def test_served_acceptance_is_what_training_predicts(tmp_path: Path, name: str, layout: str) -> None:
    shape_name, shape = CASES[name]
    folder = tiny.make_target(tmp_path / "target", shape_name)
    target = EngineTarget(folder)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    plain = LLM(str(folder), max_model_len=256)
    text = [*PROMPT, *plain.generate([PROMPT], params)[0].token_ids]
    drafter = None
    if "published" in shape:
        source = tiny.make_drafter(tmp_path / "source", tiny.drafter_for(shape_name, **shape["published"]))
        drafter, shape = continued_drafter(source, read_target_spec(folder)), SHAPE
    task = make_task(folder, target, shape, num_anchors=24, drafter=drafter)
    learn(task, DraftBatch(one_document(text, len(PROMPT))), 25)

    export_drafter(
        task.drafter, facts(folder, target), tmp_path / "drafter", ("zlab", "speculators"), torch.float32
    )
    place = tmp_path / "drafter" if layout == "zlab" else tmp_path / "drafter" / "speculators"
    llm = LLM(str(folder), speculative_config={"method": "dflash", "model": str(place)}, max_model_len=256)
    served = llm.generate([PROMPT], params)[0]
    assert [*PROMPT, *served.token_ids] == text
    drafts = trained_side(task, target, text, len(PROMPT))
    count, accepted = rounds(text, len(PROMPT), lambda at: drafts[at])
    assert (served.stats.num_drafts, served.stats.accepted_per_position) == (count, accepted)
    assert 10 < sum(accepted) < 50, "a drafter whose guesses are never right, or always, tells nothing"
