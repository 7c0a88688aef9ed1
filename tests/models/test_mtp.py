"""The multi-token head against transformers' generic MtpModel, on the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.models.base import TargetModel
from paceline.models.mtp import MTPHead
from paceline.models.registry import load_mtp, load_target
from tests import tiny
from tests.models.harness import BLOCK, Runner, new_kv, tables

PROMPT, DRAFTS = 40, 3


class Head:
    """A head with its cache, for one sequence."""

    def __init__(self, head: MTPHead, target: TargetModel, length: int = 64) -> None:
        spec = target.spec
        self.head, self.target = head, target
        self.kv = new_kv(1, spec.kv_heads, spec.head_dim, 1, length, spec.dtype)[0]
        self.tables = tables(1, length)

    def run(self, ids: torch.Tensor, hidden: torch.Tensor, first: int) -> torch.Tensor:
        """Rows at positions first..first + len(ids) - 1."""
        positions = torch.arange(first, first + len(ids))
        return self.head.forward(
            ids,
            hidden,
            positions,
            torch.zeros_like(positions),
            self.tables,
            self.tables[0, positions // BLOCK] * BLOCK + positions % BLOCK,
            self.kv,
            int(positions[-1]) + 1,
        )


def oracle_drafts(folder: Path, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Hidden of the prompt, the next token, and the generic module with a cache that holds the prompt."""
    from transformers import Qwen3_5ForCausalLM
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.config.num_mtp_layers = 1
    model.config.mtp_layer_types = ["full_attention"]
    head = MtpModel.from_pretrained(model).eval()
    with torch.no_grad():
        out = model(prompt[None], output_hidden_states=True)
    cache = MtpCache(config=model.config.get_mtp_config())
    return out.hidden_states[-1], out.logits[0, -1].argmax(), (head, cache)


@pytest.mark.parametrize("name", ["plain", "three", "tied", "odd"])
def test_drafts_of_the_generic_module(tmp_path: Path, name: str) -> None:
    folder = tiny.make_target(tmp_path, name, tokenizer=False)
    prompt = torch.randint(0, tiny.VOCAB, (PROMPT,))
    hidden, token, (theirs, cache) = oracle_drafts(folder, prompt)
    model = load_target(folder)
    head = Head(load_mtp(folder, model), model)

    ids = torch.cat([prompt[1:], token[None]])
    ours = Runner(model).prefill(prompt.tolist()).hidden
    got = head.run(ids, ours, first=1)
    with torch.no_grad():
        expected = theirs.forward_layer(
            0, hidden, torch.arange(1, PROMPT + 1)[None], cache, input_ids=ids[None]
        )
    assert (got - expected[0]).abs().max().item() < 1e-4

    # Further drafts: the head's normed output is the next hidden, the drafted token the next input.
    got, expected = got[-1:], expected[:, -1:]
    for step in range(DRAFTS):
        token = model.logits(got).argmax(-1)
        with torch.no_grad():
            assert token == theirs._project_to_logits(expected)[0, -1].argmax()
            position = torch.tensor([[PROMPT + 1 + step]])
            expected = theirs.forward_layer(0, expected, position, cache, input_ids=token[None])
        got = head.run(token, got, first=PROMPT + 1 + step)
        assert (got - expected[0]).abs().max().item() < 1e-4


def test_a_row_depends_on_nothing_after_it(tmp_path: Path) -> None:
    """Chunks of any size give the same rows, and a rewritten row replaces the scratch of a draft."""
    folder = tiny.make_target(tmp_path, tokenizer=False)
    model = load_target(folder, deterministic=True)
    loaded = load_mtp(folder, model, deterministic=True)
    ids, hidden = torch.randint(0, tiny.VOCAB, (30,)), torch.randn(30, model.spec.hidden_size)
    whole, parts = Head(loaded, model), Head(loaded, model)
    expected = whole.run(ids, hidden, first=1)
    parts.run(ids[:12], hidden[:12], first=1)
    parts.run(ids[:3] + 1, hidden[5:8], first=13)  # drafted rows, later rejected
    got = parts.run(ids[12:], hidden[12:], first=13)
    assert torch.equal(got, expected[12:])


def test_position_zero_is_padding(tmp_path: Path) -> None:
    """A row at position 0 sees nothing and stays finite, whatever the null block holds."""
    folder = tiny.make_target(tmp_path, tokenizer=False)
    model = load_target(folder)
    head = Head(load_mtp(folder, model), model)
    zero = torch.zeros(2, dtype=torch.int64)
    hidden = torch.randn(2, model.spec.hidden_size)
    out = head.head.forward(zero + 5, hidden, zero, zero, head.tables, zero, head.kv, 1)
    assert out.isfinite().all()
