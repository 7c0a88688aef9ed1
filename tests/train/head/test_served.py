"""A trained head drafts in the engine what training says it drafts, from either form of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.models.registry import read_target_spec
from paceline.train.data.batches import SampleBatches
from paceline.train.draft.anchors import Anchors
from paceline.train.draft.features import OnlineFeatures
from paceline.train.draft.losses import LossShape
from paceline.train.head.export import export_head, export_model, link_model
from paceline.train.head.task import HeadTask
from paceline.train.modules.load import load_train_target
from paceline.train.modules.mtp import MTPHead, head_spec
from tests import tiny
from tests.train.draft.harness import learn, one_document, packed, rounds

PROMPT = [5, 9, 40, 7, 33, 60, 12, 18, 22]
STEPS = 3


def head_task(folder: Path, batches: SampleBatches | None = None, **changes: object) -> HeadTask:
    target = load_train_target(folder)
    head = MTPHead(head_spec(read_target_spec(folder)))
    settings = {
        "steps": STEPS, "num_anchors": 24, "head_rows": 16, "device": torch.device("cpu"),
        "compute": torch.float32, "export": lambda module, path: None, **changes,
    }  # fmt: skip
    features = OnlineFeatures(target, (), hidden=True)
    loss = LossShape("decay", None, 0.5)
    return HeadTask(head, target, batches or packed(), features, loss, **settings)  # type: ignore[arg-type]


def trained_side(task: HeadTask, ids: list[int]) -> list[list[int]]:
    """The drafts of every position of a text as an anchor."""
    tokens = one_document(ids, len(PROMPT))
    at = torch.arange(len(ids))[None]
    anchors = Anchors(at, torch.zeros_like(at), torch.ones_like(at, dtype=torch.bool))
    with torch.no_grad():
        guesses = task.guesses(tokens, task._features(tokens), anchors)
        return task._target.logits(guesses.hidden)[0].argmax(-1).tolist()


@pytest.mark.parametrize(("shape", "form"), [("plain", "linked"), ("tied", "linked"), ("three", "copied")])
def test_served_acceptance_is_what_training_predicts(tmp_path: Path, shape: str, form: str) -> None:
    folder = tiny.make_target(
        tmp_path / "target", shape, mtp=shape == "plain", shards=2 if shape == "tied" else 1
    )
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    text = [*PROMPT, *LLM(str(folder), max_model_len=256).generate([PROMPT], params)[0].token_ids]
    task = head_task(folder)
    learn(task, one_document(text, len(PROMPT)), 25, 1e-2)

    model = tmp_path / "model"
    if form == "copied":
        export_model(task.head, folder, model, torch.float32)
    else:
        export_head(task.head, folder, tmp_path / "head", torch.float32)
        model.mkdir()
        link_model(tmp_path / "head", folder, model)
    llm = LLM(
        str(model), speculative_config={"method": "mtp", "num_speculative_tokens": STEPS}, max_model_len=256
    )
    served = llm.generate([PROMPT], params)[0]
    assert [*PROMPT, *served.token_ids] == text
    drafts = trained_side(task, text)
    count, accepted = rounds(text, len(PROMPT), lambda at: drafts[at])
    assert (served.stats.num_drafts, served.stats.accepted_per_position) == (count, accepted)
    assert 10 < sum(accepted) < 50, "a head whose guesses are never right, or always, tells nothing"
