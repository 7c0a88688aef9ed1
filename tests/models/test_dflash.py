"""The DFlash drafter against a plain recomputation: full attention over context and block with explicit
masks."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from paceline.kernels.dflash import BestDrafts
from paceline.kernels.linear import make_linear
from paceline.models.base import TargetModel
from paceline.models.dflash import DFlashDrafter
from paceline.models.dflash_block import BlockRequest
from paceline.models.registry import load_drafter, load_target
from tests import tiny
from tests.models.harness import BLOCK, new_kv, tables

FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": (SLIDING, SLIDING), "sliding_window": 12},
    "mixed": {"layer_types": (SLIDING, FULL, SLIDING), "sliding_window": 20},
    "sliding, not causal": {
        "layer_types": (SLIDING, SLIDING), "sliding_window": 12, "extra": {"is_causal": False},
    },
    "window shorter than the block": {
        "layer_types": (SLIDING, FULL), "sliding_window": 3, "nested": {"causal": False},
    },
    "all causal": {"extra": {"is_causal": True}},
    "one window for every layer": {"nested": {"use_swa": True, "swa_window_size": 9}},
    "yarn": {"extra": {"rope_scaling": YARN}},
    "one layer, one tap, one kv head": {
        "layer_types": (FULL,), "target_layer_ids": (3,), "num_key_value_heads": 1, "head_dim": 32,
    },
    "more taps than layers": {"layer_types": (FULL,), "target_layer_ids": (2, 0, 1, 3)},
    "default taps": {"target_layer_ids": None},
}  # fmt: skip


class Drafting:
    """A drafter with its cache for several sequences."""

    def __init__(self, drafter: DFlashDrafter, target: TargetModel, sequences: int, length: int = 96) -> None:
        spec = drafter.spec
        self.drafter, self.target = drafter, target
        self.kv = new_kv(spec.num_layers, spec.kv_heads, spec.head_dim, sequences, length, spec.dtype)
        self.tables = tables(sequences, length)

    def append(self, sequence: int, features: torch.Tensor, first: int) -> None:
        positions = torch.arange(first, first + len(features))
        where = self.tables[sequence, positions // BLOCK] * BLOCK + positions % BLOCK
        self.drafter.append_context(features, positions, where, self.kv)

    def draft(
        self,
        anchors: list[int],
        starts: list[int],
        n: int,
        counts: list[int] | None = None,
        wanted: int | None = None,
    ) -> torch.Tensor:
        return self.drafter.draft(
            self._request(anchors, starts, n, counts, wanted or n), self.kv, self.target
        )

    def best_drafts(
        self,
        anchors: list[int],
        starts: list[int],
        counts: list[int],
        wanted: int,
        ids: int,
        asked: torch.Tensor | None = None,
    ) -> BestDrafts:
        request = self._request(anchors, starts, 7, counts, wanted)
        return self.drafter.best_drafts(request, self.kv, self.target, ids, asked)

    def _request(
        self, anchors: list[int], starts: list[int], n: int, counts: list[int] | None, wanted: int
    ) -> BlockRequest:
        return BlockRequest(
            torch.tensor(anchors), torch.tensor(starts), self.tables, n, wanted, max(starts) + n + 1,
            None if counts is None else torch.tensor(counts),
        )  # fmt: skip


def naive_draft(
    folder: Path, shape: tiny.TinyDrafter, table: torch.Tensor, features: torch.Tensor, anchor: int, n: int
) -> torch.Tensor:
    """One block over `features` [s, K * H] by the published rules, with no cache: [n, H] after the final
    norm."""
    weights = load_file(folder / "model.safetensors")
    start, rows = len(features), n + 1
    context = plain_norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    x = table[torch.tensor([anchor] + [shape.mask_token_id] * n)]
    for i, kind in enumerate(shape.layer_types):
        layer = {
            k.removeprefix(f"layers.{i}."): w for k, w in weights.items() if k.startswith(f"layers.{i}.")
        }
        normed = plain_norm(x, layer["input_layernorm.weight"])
        mask = layer_mask(shape, kind, start, rows)
        x = x + attention(shape, layer, torch.cat([context, normed]), normed, mask, start)
        hidden = plain_norm(x, layer["post_attention_layernorm.weight"])
        gate, up = hidden @ layer["mlp.gate_proj.weight"].T, hidden @ layer["mlp.up_proj.weight"].T
        x = x + (F.silu(gate) * up) @ layer["mlp.down_proj.weight"].T
    return plain_norm(x, weights["norm.weight"])[1:]


def layer_mask(shape: tiny.TinyDrafter, kind: str, start: int, rows: int) -> torch.Tensor:
    """[rows, start + rows] bool: what each block row sees, by the resolution order of the published
    configs."""
    stated = shape.extra.get("is_causal", shape.nested.get("causal"))
    causal = (kind == SLIDING and not shape.nested.get("use_swa")) if stated is None else stated
    window = shape.nested.get("swa_window_size") or (shape.sliding_window if kind == SLIDING else None)
    mask = torch.ones(rows, start + rows, dtype=torch.bool)
    for row in range(rows):
        for key in range(start + rows):
            distance = start + row - key
            if causal and distance < 0:
                mask[row, key] = False
            if window is not None and abs(distance) >= window:
                mask[row, key] = False
    return mask


def attention(
    shape: tiny.TinyDrafter,
    layer: dict[str, torch.Tensor],
    keys_of: torch.Tensor,
    queries_of: torch.Tensor,
    mask: torch.Tensor,
    start: int,
) -> torch.Tensor:
    """Grouped-query attention of the block's rows over context and block."""
    heads, kv_heads, dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    q = (queries_of @ layer["self_attn.q_proj.weight"].T).view(-1, heads, dim)
    k = (keys_of @ layer["self_attn.k_proj.weight"].T).view(-1, kv_heads, dim)
    v = (keys_of @ layer["self_attn.v_proj.weight"].T).view(-1, kv_heads, dim)
    q = rotated(shape, plain_norm(q, layer["self_attn.q_norm.weight"]), torch.arange(start, start + len(q)))
    k = rotated(shape, plain_norm(k, layer["self_attn.k_norm.weight"]), torch.arange(len(k)))
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ layer["self_attn.o_proj.weight"].T


def rotated(shape: tiny.TinyDrafter, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding by complex products; YaRN's frequencies come from transformers."""
    half = shape.head_dim // 2
    scale, frequency = 1.0, shape.rope_theta ** (-torch.arange(half) / half)
    if "rope_scaling" in shape.extra:
        from transformers import Qwen3Config
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = Qwen3Config(
            head_dim=shape.head_dim, max_position_embeddings=shape.max_position_embeddings,
            rope_parameters={**shape.extra["rope_scaling"], "rope_theta": shape.rope_theta},
        )  # fmt: skip
        frequency, scale = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    angle = positions[:, None, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.full_like(angle, scale), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


def plain_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    folder = tiny.make_target(tmp_path_factory.mktemp("target"), tokenizer=False)
    return load_target(folder, deterministic=True)


def features_for(drafter: DFlashDrafter, rows: int) -> torch.Tensor:
    return torch.randn(rows, len(drafter.spec.target_layer_ids) * drafter.spec.hidden_size)


@pytest.mark.parametrize("name", list(VARIANTS))
def test_against_a_plain_recomputation(tmp_path: Path, target: TargetModel, name: str) -> None:
    shape = tiny.drafter_for("plain", **VARIANTS[name])
    folder = tiny.make_drafter(
        tmp_path, shape, in_dflash_config=len(name) % 2 == 0, rope_nested="yarn" not in name
    )
    drafter = load_drafter(folder, target.spec)
    table = target.embed(torch.arange(tiny.VOCAB))
    state = Drafting(drafter, target, sequences=2)
    starts, anchors, n = [50, 21], [7, 90], 7
    features = [features_for(drafter, start) for start in starts]
    state.append(0, features[0][:33], 0)
    state.append(1, features[1], 0)
    state.append(0, features[0][33:], 33)
    got = state.draft(anchors, starts, n)
    assert got.shape == (2, n, drafter.spec.hidden_size)
    for i in range(2):
        expected = naive_draft(folder, shape, table, features[i], anchors[i], n)
        assert (got[i] - expected).abs().max().item() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_one_native_call_gives_the_bits_of_the_composed_passes(
    tmp_path: Path, target: TargetModel, name: str, dtype: torch.dtype
) -> None:
    """Whole and short blocks, a padding sequence, and fewer drafts than the block holds."""
    folder = tiny.make_drafter(tmp_path, tiny.drafter_for("plain", **VARIANTS[name]))
    drafter = load_drafter(folder, replace(target.spec, dtype=dtype), deterministic=True)
    if drafter.native is None:
        pytest.skip("no native kernels here")
    composed = copy(drafter)
    composed.native = None
    table = target.embedding.to(dtype)
    model = SimpleNamespace(embedding=table, embed=lambda ids: table[ids])
    states = [Drafting(which, model, sequences=4) for which in (drafter, composed)]  # type: ignore[arg-type]
    features = features_for(drafter, 60).to(dtype)
    seen = []
    for state in states:
        for sequence, length in enumerate((60, 9, 33)):
            state.append(sequence, features[:length], 0)
        seen += [
            state.draft([3, 4, 5, 0], [60, 9, 33, 0], 7, counts=[8, 3, 8, 0], wanted=4),
            state.draft([7], [60], 7)[:, :2],
            state.draft([7], [60], 7, wanted=2),
        ]
    assert torch.equal(seen[1], seen[2])
    head = make_linear(torch.randn(40, drafter.spec.hidden_size).to(dtype), deterministic=True)
    model.head, model.logits = head, lambda hidden: head(hidden, out_dtype=torch.float32)
    asked = torch.randint(0, 40, (4, 6))[:, 1:5]
    asked[1, 2] = -1  # any number may come of it
    blocks = [3, 4, 5, 0], [60, 9, 33, 0], [8, 3, 8, 0], 4, 37
    best = [state.best_drafts(*blocks, asked) for state in states]
    assert torch.equal(best[0].tokens, best[1].tokens)
    assert torch.equal(states[0].best_drafts(*blocks).tokens, best[0].tokens)
    logits = model.logits(seen[0].flatten(0, 1)).view(4, 4, -1)
    assert torch.equal(best[0].tokens, logits[..., :37].argmax(-1))
    leads = logits[..., :37].amax(-1) - logits.gather(-1, asked.clamp(min=0)[..., None])[..., 0]
    for found in best:
        assert found.leads is not None and torch.equal(found.leads, leads)
    for native, other in zip(seen[:3], seen[3:], strict=True):
        assert native.isfinite().all() and torch.equal(native, other)
    for mine, others in zip(states[0].kv, states[1].kv, strict=True):
        for cache, other in zip(mine, others, strict=True):  # padding rows share the null block
            assert torch.equal(cache[1:].nan_to_num(), other[1:].nan_to_num())


def test_ids_and_blocks_out_of_bounds_are_refused(tmp_path: Path, target: TargetModel) -> None:
    drafter = load_drafter(tiny.make_drafter(tmp_path), target.spec)
    if drafter.native is None:
        pytest.skip("no native kernels here")
    state = Drafting(drafter, target, sequences=1)
    with pytest.raises(AssertionError, match="out of bounds"):
        state.draft([tiny.VOCAB], [3], 7)
    with pytest.raises(AssertionError, match="out of bounds"):
        state.best_drafts([5], [3], [8], 1, 50, torch.tensor([[tiny.VOCAB]]))
    state.tables = state.tables + 1000
    with pytest.raises(AssertionError, match="out of bounds"):
        state.draft([5], [3], 7)


@pytest.mark.parametrize("name", ["full", "mixed"])
def test_masks_never_persist(tmp_path: Path, target: TargetModel, name: str) -> None:
    """After several drafted blocks, a block equals the one of a drafter that drafted nothing before."""
    shape = tiny.drafter_for("plain", **VARIANTS[name])
    drafter = load_drafter(tiny.make_drafter(tmp_path, shape), target.spec, deterministic=True)
    busy, quiet = Drafting(drafter, target, sequences=1), Drafting(drafter, target, sequences=1)
    features, at = features_for(drafter, 40), 16
    busy.append(0, features[:at], 0)
    for accepted in (1, 8, 3):
        busy.draft([at % 50], [at], 7)
        busy.append(0, features[at : at + accepted], at)
        at += accepted
    quiet.append(0, features[:at], 0)
    assert torch.equal(busy.draft([9], [at], 7), quiet.draft([9], [at], 7))


def test_a_short_block_does_not_depend_on_its_neighbours(tmp_path: Path, target: TargetModel) -> None:
    """counts: a block of 4 rows beside one of 8 equals the block of 4 alone; a padding sequence is
    harmless."""
    drafter = load_drafter(tiny.make_drafter(tmp_path), target.spec, deterministic=True)
    together, alone = (Drafting(drafter, target, sequences=3) for _ in range(2))
    features = features_for(drafter, 30)
    for state in (together, alone):
        state.append(0, features, 0)
        state.append(1, features[:10], 0)
    wide = together.draft([3, 4, 0], [30, 10, 0], 7, counts=[4, 8, 0])
    short = alone.draft([3, 4, 0], [30, 10, 0], 3, counts=[4, 0, 0])
    assert torch.equal(wide[0, :3], short[0])
    assert wide.isfinite().all()


def test_beyond_its_maximum_length_a_drafter_drafts_nothing(tmp_path: Path, target: TargetModel) -> None:
    """A long sequence neither fails nor disturbs the block of a short one beside it."""
    folder = tiny.make_drafter(tmp_path, tiny.drafter_for("plain", max_position_embeddings=48))
    drafter = load_drafter(folder, target.spec, deterministic=True)
    mixed, alone = (Drafting(drafter, target, sequences=2, length=2048) for _ in range(2))
    short, long = features_for(drafter, 20), features_for(drafter, 60)
    for state in (mixed, alone):
        state.append(0, short, 0)
    mixed.append(1, long, 1980)
    got = mixed.draft([3, 4], [20, 2040], 7)
    assert torch.equal(got[0], alone.draft([3, 4], [20, 0], 7, counts=[8, 0])[0])
    assert got.isfinite().all()


def test_dropped_rows_go_to_the_null_block(tmp_path: Path, target: TargetModel) -> None:
    drafter = load_drafter(tiny.make_drafter(tmp_path), target.spec)
    state = Drafting(drafter, target, sequences=1)
    zero = torch.zeros(4, dtype=torch.int64)
    drafter.append_context(features_for(drafter, 4), zero, zero, state.kv)
    for k, v in state.kv:
        assert k[1:].isnan().all() and v[1:].isnan().all()


def test_bfloat16(tmp_path: Path, target: TargetModel) -> None:
    """The drafter takes the target's dtype and stays near its float32 self."""
    folder = tiny.make_drafter(tmp_path)
    spec = replace(target.spec, dtype=torch.bfloat16)
    half = load_drafter(folder, spec)
    assert half.spec.dtype == torch.bfloat16

    class Half:
        embedding = target.embedding.bfloat16()

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return target.embed(ids).bfloat16()

    features = features_for(half, 20)
    low, high = Drafting(half, Half(), 1), Drafting(load_drafter(folder, target.spec), target, 1)  # type: ignore[arg-type]
    low.append(0, features.bfloat16(), 0)
    high.append(0, features, 0)
    assert (low.draft([5], [20], 7).float() - high.draft([5], [20], 7)).abs().max().item() < 0.15
