"""Traps of drafter training: leaks through the mask, shifted labels, rounds that real decoding would not
have."""

from __future__ import annotations

import pytest
import torch

from paceline.train import accept, dflash, mtp
from paceline.train.config import DrafterConfig
from tests.train.test_target import BUDGET, random_target, tiny

B, MASK = 4, 299


def drafter(**changes: object) -> DrafterConfig:
    sizes = {
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "block_size": B,
        "target_layer_ids": (0, 2),
        "mask_token_id": MASK,
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 9,
        "training": BUDGET,
        **changes,
    }
    return DrafterConfig(**sizes)  # type: ignore[arg-type]


def test_mask_hides_the_anchor_and_other_blocks() -> None:
    anchors = torch.tensor([[3, 7]])
    full = dflash.block_mask(anchors, 10, B, None, causal=False)[0]
    context, block = full[:, :10], full[:, 10:]
    assert context.sum(1).tolist() == [3] * B + [7] * B  # strictly before
    assert torch.equal(block, torch.block_diag(torch.ones(B, B), torch.ones(B, B)).bool())


def test_windowed_mask_is_causal_and_counts_the_query() -> None:
    seen = dflash.block_mask(torch.tensor([[8]]), 10, B, 3, causal=True)[0]
    where = [row.nonzero().flatten().tolist() for row in seen]
    # p - q < 3, and slot j is at position 8 + j.
    assert where == [[6, 7, 10], [7, 10, 11], [10, 11, 12], [11, 12, 13]]


def test_slots_predict_their_own_position() -> None:
    ids = torch.arange(20).unsqueeze(0)
    anchors = torch.tensor([[5, 17]])
    assert dflash.block_labels(ids, anchors, B)[0].tolist() == [[6, 7, 8], [18, 19, -100]]
    embed = torch.arange(300.0).unsqueeze(1)
    inputs = dflash.block_inputs(ids, anchors, embed, MASK, B)[0, :, :, 0]
    assert inputs.tolist() == [[5, MASK, MASK, MASK], [17, MASK, MASK, MASK]]


def test_no_answer_leaks_into_a_draft() -> None:
    """Drafts of an anchor do not move when any token after it changes, nor with the other anchors of the
    batch."""
    c = tiny()
    model, net = random_target(c), dflash.Drafter(drafter(), c).requires_grad_(False)
    ids = torch.randint(0, 290, (1, 40))
    changed = ids.clone()
    changed[:, 21:] = torch.randint(0, 290, (1, 19))

    def hidden(tokens: torch.Tensor, anchors: list[int]) -> torch.Tensor:
        at = torch.tensor([anchors])
        _, features = model(tokens, (0, 2))
        assert features is not None
        block = dflash.block_inputs(tokens, at, model.embed_tokens.weight, MASK, B)
        return net(features, at, block)[0, anchors.index(20)]

    want = hidden(ids, [20])
    assert (hidden(changed, [20]) - want).abs().max() < 1e-5
    assert (hidden(changed, [3, 20, 21, 22]) - want).abs().max() < 1e-5


def test_anchors_start_where_generation_does() -> None:
    prefix = torch.tensor([5, 30])
    at = dflash.random_anchors(prefix, 40, 500, torch.Generator().manual_seed(0))
    assert at.min(1).values.tolist() == [4, 29] and at.max(1).values.tolist() == [38, 38]


def test_weights_follow_the_chain() -> None:
    right, valid = torch.tensor([0.5, 0.1, 0.9]), torch.tensor([1.0, 1.0, 0.0])
    decay = dflash.position_weights(right, valid, drafter(weighting="decay", decay_gamma=4.0))
    assert torch.allclose(decay, torch.tensor([1.0, 0.7788, 0.0]), atol=1e-4)
    pace = dflash.position_weights(right, valid, drafter(dpace_alpha=0.5))
    assert torch.allclose(pace, torch.tensor([0.75 + 0.75 * 0.55, 0.75 * 0.55, 0.0]))


def test_mtp_chain_sees_what_serving_commits() -> None:
    """Step k of row i equals a chain run alone on the sequence cut after its own inputs."""
    c = tiny()
    torch.manual_seed(1)
    head = mtp.MTPHead(c).requires_grad_(False)
    hidden, embeds = torch.randn(1, 30, 64), torch.randn(1, 30, 64)
    row, steps = 11, 3
    outs = head(hidden, embeds, steps)
    later = hidden.clone(), embeds.clone()
    later[0][:, row + 1 :] = 7.0  # hidden states after the row do not exist yet when it drafts
    later[1][:, row + steps + 1 :] = 7.0
    for k, out in enumerate(head(later[0], later[1], steps)):
        assert (out[:, row] - outs[k][:, row]).abs().max() < 1e-5
    labels = mtp.mtp_labels(torch.arange(30).unsqueeze(0), torch.tensor([10]), steps)
    assert labels[:, 0, row].tolist() == [13, 14, 15] and labels[0, 0, 7].item() == -100


def test_walk_counts_real_rounds() -> None:
    stats = accept.Acceptance(2)
    right = torch.zeros(12, 2, dtype=torch.bool)
    right[3] = True  # two accepted: next anchor at 6
    right[6, 1] = True  # the first is wrong, so the second does not count: next anchor at 7
    right[7, 0] = True  # one accepted: next anchor at 9
    accept.walk(right, 3, stats)
    assert (stats.rounds, stats.accepted) == (4, [2, 1])
    assert stats.record()["acceptance_length"] == pytest.approx(1.75)


def test_all_anchors_at_once_equal_one_block_at_a_time() -> None:
    c = tiny()
    model, net = random_target(c), dflash.Drafter(drafter(), c).requires_grad_(False)
    ids = torch.randint(0, 290, (1, 30))
    _, features = model(ids, (0, 2))
    assert features is not None
    right = accept.dflash_hits(model, net, ids, features, 10)
    for at in (10, 17, 26):
        cut = features[:, :at]  # what serving holds: features strictly before the anchor
        anchor = torch.tensor([[at]])
        block = dflash.block_inputs(ids, anchor, model.embed_tokens.weight, MASK, B)
        drafts = model.logits(net(cut, anchor, block)[0, 0, 1:]).argmax(-1)
        assert torch.equal(right[0, at], drafts == ids[0, at + 1 : at + B])
