"""Drafts that follow the text's own past: the sequences' index, and the whole engine with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from paceline.config.sampling import SamplingParams
from paceline.engine.results import RequestOutput
from paceline.engine.sequence import Sequence
from paceline.speculate.base import DraftRequest, Drafts
from paceline.speculate.recall import NOTHING
from tests import tiny
from tests.engine.harness import (
    NUM_DRAFTS,
    ScriptedProposer,
    assemble_tiny,
    oracle_answers,
    random_prompts,
    run,
)
from tests.engine.sequences import make

ALLOWED = [7, 8, 9]
FEW_WORDS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, allowed_token_ids=ALLOWED)
"""Of three tokens a text soon ends as it did before."""


LEADS = torch.tensor([100.0] + [0.5] * (NUM_DRAFTS - 1))
"""Nats that the scripted drafts lead by: the first is never overruled, the others by any agreement."""


class OneRight(ScriptedProposer):
    """Its first draft is right, the others never are."""

    def propose(self, request: DraftRequest) -> Drafts:
        assert request.histories is not None
        rows = []
        for history, limit in zip(request.histories, request.limits, strict=True):
            right = self.answers(history)[:limit]
            wrong = [ALLOWED[(ALLOWED.index(token) + 1) % 3] for token in right[1:]]
            rows.append((right[:1] + wrong + [0] * NUM_DRAFTS)[:NUM_DRAFTS])
        logits = functional.one_hot(torch.tensor(rows), tiny.VOCAB).float() * LEADS[:, None]
        return Drafts(request.choose(logits, 0, request.anchors[:, None][:, :0]), list(request.limits))


def test_a_sequence_recalls_its_prompt_and_what_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = make(6)  # 0 1 2 3 4 5
    sequence.commit_prompt(6, first_token=2)
    assert sequence.recall(3) == [1, 3, 4, 5]
    sequence.commit([3])
    assert sequence.recall(3) == [2, 4, 5, 2]
    sequence.commit([9, 2, 3])
    assert sequence.recall(3) == [2, 9, 2, 3]
    monkeypatch.setattr("paceline.engine.sequence.REACH", 2)
    short = make(6)  # of which 4 5 are indexed
    short.commit_prompt(6, first_token=1)
    short.commit([2])
    assert short.recall(2) == [0, NOTHING, NOTHING]
    short.commit([4, 5])
    assert short.recall(2) == [2, 1, 2]


def answer(folder: Path, looks_back: bool) -> list[RequestOutput]:
    """Five prompts of different lengths, in places for three; the text must be the plain one."""
    prompts = random_prompts(5)
    plain = run(assemble_tiny(folder), prompts, FEW_WORDS)
    proposer = OneRight(oracle_answers(prompts, plain))
    proposer.looks_back = looks_back
    found = run(assemble_tiny(folder, proposer=proposer, max_num_seqs=3), prompts, FEW_WORDS)
    assert [o.token_ids for o in found] == [o.token_ids for o in plain]
    return found


def test_the_index_goes_with_the_request(tmp_path: Path) -> None:
    folder = tiny.make_target(tmp_path / "target", "three", dtype=torch.float32)
    parts = assemble_tiny(folder, speculative={"method": "mtp"}, max_num_seqs=1)
    indexed: list[Sequence] = []

    def between() -> None:
        indexed.extend(s for s in parts.engine.scheduler.running if s.endings and s not in indexed)

    run(parts, random_prompts(2), FEW_WORDS, between)
    assert len(indexed) == 2 and all(s.endings is None for s in indexed)


def test_repetitions_are_accepted_and_the_text_stays(tmp_path: Path) -> None:
    folder = tiny.make_target(tmp_path / "target", "three", dtype=torch.float32)
    alone, looking = answer(folder, False), answer(folder, True)
    assert all(sum(o.stats.accepted_per_position[1:]) == 0 for o in alone)
    assert sum(sum(o.stats.accepted_per_position[1:]) for o in looking) > 10
    assert sum(o.stats.target_passes for o in looking) < sum(o.stats.target_passes for o in alone)
