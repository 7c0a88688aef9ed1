"""The gated delta operator against transformers and against the recurrence written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.kernels.gated_delta import DeltaShape, DeltaState, DeltaWeights, reference
from tests.kernels.gated_delta_cases import IMPLEMENTATIONS, NAMES, NATIVE, NORM_EPS, SHAPES, Layer, ints

each_op = pytest.mark.parametrize("op", IMPLEMENTATIONS, ids=NAMES)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
needs_native = pytest.mark.skipif(NATIVE is None, reason="no C++ compiler")


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=tolerance)


def token_by_token(layer: Layer, rows: tuple[Tensor, ...]) -> Tensor:
    """The fp32 formulas for one fresh sequence, in float64 and with Python loops."""
    w = layer.weights
    qkv, z, b, a = (x.double() for x in rows)
    taps, key = w.conv.double(), w.Hk * w.dk
    state = torch.zeros(w.Hv, w.dk, w.dv, dtype=torch.float64)
    out = torch.empty(qkv.shape[0], w.Hv, w.dv, dtype=torch.float64)
    for t in range(qkv.shape[0]):
        u = sum(qkv[t - j] * taps[:, -1 - j] for j in range(min(t + 1, taps.shape[1])))
        u = u / (1 + (-u).exp())
        for j in range(w.Hv):
            h = j // (w.Hv // w.Hk)
            q, k = u[h * w.dk :][: w.dk], u[key + h * w.dk :][: w.dk]
            q, k = (x / math.sqrt(float(x @ x) + 1e-6) for x in (q, k))
            v = u[2 * key + j * w.dv :][: w.dv]
            g = -math.exp(float(w.A_log[j])) * math.log1p(math.exp(float(a[t, j] + w.dt_bias[j])))
            beta = 1 / (1 + math.exp(-float(b[t, j])))
            s = state[j] * math.exp(g)
            state[j] = s + torch.outer(k, beta * (v - k @ s))
            o = (q / math.sqrt(w.dk)) @ state[j]
            gate = z[t, j * w.dv :][: w.dv]
            o = o / math.sqrt(float(o @ o) / w.dv + w.eps) * w.norm.double()
            out[t, j] = o * gate / (1 + (-gate).exp())
    return out.flatten(1)


@each_op
@each_shape
def test_decode_and_prefill_equal_the_recurrence_written_out(op: Any, shape: DeltaShape) -> None:
    layer = Layer.make(shape, torch.float32)
    rows = layer.rows(9)
    want = token_by_token(layer, rows)
    close(layer.prefill(op, rows, slot=1), want, 1e-5)
    layer.prefill(op, [x[:1] for x in rows], slot=2)
    close(layer.decode(op, [x[1:] for x in rows], slot=2, pending=0), want[1:], 1e-5)


def their_layer(dtype: torch.dtype) -> tuple[Any, Layer]:
    """transformers' module (3 value heads a key head) and our layer with its weights."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    shape = DeltaShape(Hk=2, Hv=6, dk=16, dv=32)
    config = Qwen3_5TextConfig(
        hidden_size=48,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=shape.Hk,
        linear_num_value_heads=shape.Hv,
        linear_key_head_dim=shape.dk,
        linear_value_head_dim=shape.dv,
        linear_conv_kernel_dim=shape.width,
        rms_norm_eps=NORM_EPS,
    )
    torch.manual_seed(3)
    module = theirs.Qwen3_5GatedDeltaNet(config, layer_idx=0)
    with torch.no_grad():
        module.dt_bias.normal_()
        module.A_log.uniform_(-4, 0)  # their chunked form loses digits in the running sum of strong decays
        module.norm.weight.uniform_(0.5, 1.5)
        for p in (module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a):
            p.weight.mul_(4)
    module = module.to(dtype).eval()
    weights = DeltaWeights(
        conv=module.conv1d.weight.detach()[:, 0],
        A_log=module.A_log.detach().float(),
        dt_bias=module.dt_bias.detach().float(),
        norm=module.norm.weight.detach(),
        eps=config.rms_norm_eps,
        Hk=shape.Hk,
        Hv=shape.Hv,
        dk=shape.dk,
        dv=shape.dv,
    )
    state = DeltaState.allocate(4, 8, shape, dtype, fill=float("nan"))
    return module, Layer(weights, state, torch.Generator())


def run_theirs(module: Any, hidden: Tensor, cuts: list[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Our inputs (their projections) and what reaches their output projection, for calls of `cuts` rows."""
    from transformers import DynamicCache
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    seen: list[Tensor] = []
    hook = module.out_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
    cache = DynamicCache(config=Qwen3_5TextConfig(num_hidden_layers=1, layer_types=["linear_attention"]))
    with torch.no_grad():
        for part in hidden.split(cuts):
            module(part[None], cache=cache)
        projections = (module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a)
        rows = tuple(p(hidden) for p in projections)
    hook.remove()
    return rows, torch.cat(seen)


@each_op
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
def test_equals_transformers_chunk_by_chunk_and_step_by_step(
    op: Any, dtype: torch.dtype, tolerance: float
) -> None:
    module, layer = their_layer(dtype)
    hidden = torch.randn(100, 48).to(dtype)
    rows, want = run_theirs(module, hidden, [70, 18] + [1] * 12)
    close(layer.prefill(op, [x[:70] for x in rows], slot=1), want[:70], tolerance)
    close(layer.prefill(op, [x[70:88] for x in rows], slot=1, fresh=False), want[70:88], tolerance)
    close(layer.decode(op, [x[88:] for x in rows], slot=1, pending=0), want[88:], tolerance)
    if dtype == torch.bfloat16:  # the same roundings in the same places: most values are equal to the bit
        again = layer.prefill(op, rows, slot=2)
        assert (again[:88] == want[:88]).float().mean() > 0.9


@each_op
def test_rules_of_transformers_on_the_stored_rows(op: Any) -> None:
    """The rows that a window stores are what transformers' rules take."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    )

    layer = Layer.make(SHAPES[0], torch.float32)
    layer.prefill(op, layer.rows(5), slot=1)
    before = layer.st.state[1].clone()
    layer.window(op, layer.rows(8), slot=1, pending=0)
    st = layer.st
    k, v, g, beta = (t[1:2] for t in (st.k_rows, st.v_rows, st.g_rows, st.beta_rows))
    for rule in (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule):
        _, after = rule(
            k,
            k,
            v,
            g=g,
            beta=beta,
            initial_state=before[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        close(layer.committed(op, 1, 8)[0], after[0], 1e-5)


@needs_native
@each_shape
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)], ids=str)
def test_native_equals_reference(shape: DeltaShape, dtype: torch.dtype, tolerance: float) -> None:
    """Two sequences and a padding one, prefill, windows with rejections, commit."""
    ours = Layer.make(shape, dtype)
    oracle = ours.twin()
    rows = ours.rows(83)
    index = (ints(2, 0, 5), torch.tensor([True, False, True]), ints(3, 0, 78), ints(70, 0, 5))
    got = NATIVE.prefill(*rows, ours.weights, ours.st, *index)
    close(got, reference.prefill(*rows, oracle.weights, oracle.st, *index), tolerance)
    pending = ints(0, 0, 0)
    for counts in (ints(3, 0, 8), ints(1, 0, 2), ints(8, 0, 0)):
        rows = ours.rows(17)
        index = (ints(2, 0, 5), pending, ints(9, 0, 1), counts, 8)
        got = NATIVE.window(*rows, ours.weights, ours.st, *index)
        close(got, reference.window(*rows, oracle.weights, oracle.st, *index), tolerance)
        pending = counts.clamp(max=2)
    for st, op in ((ours.st, NATIVE), (oracle.st, reference)):
        op.commit(st, ints(2, 5), ints(3, 5), ints(2, 0))
    close(ours.st.state[[2, 3, 5]], oracle.st.state[[2, 3, 5]], 1e-5 if dtype == torch.float32 else 1e-3)
    assert torch.equal(ours.st.conv_rows[[2, 3, 5], :3], oracle.st.conv_rows[[2, 3, 5], :3])


@needs_native
def test_native_refuses_indices_outside_its_tensors() -> None:
    layer = Layer.make(SHAPES[0], torch.float32)
    rows = layer.rows(4)
    bad = [
        (ints(6), ints(0), ints(0), ints(4)),
        (ints(1), ints(9), ints(0), ints(4)),
        (ints(1), ints(0), ints(1), ints(4)),
        (ints(1), ints(0), ints(0), ints(-1)),
    ]
    for index in bad:
        with pytest.raises(AssertionError, match="out of range"):
            NATIVE.window(*rows, layer.weights, layer.st, *index, 8)
    with pytest.raises(AssertionError, match="out of range"):
        NATIVE.commit(layer.st, ints(1), ints(2), ints(9))
    assert layer.st.state.isnan().all()


def test_bytes_of_a_slot_are_what_is_allocated() -> None:
    shape = SHAPES[0]
    for dtype in (torch.bfloat16, torch.float32):
        st = DeltaState.allocate(3, 7, shape, dtype)
        assert 3 * shape.slot_bytes(7, dtype) == sum(t.nbytes for t in st.tensors())
        assert 3 * shape.state_bytes == st.state.nbytes


def test_rollback_of_the_27b_shape_is_small_and_holds_no_state() -> None:
    shape = DeltaShape(Hk=16, Hv=48, dk=128, dv=128)
    assert shape.state_bytes == 3 * 2**20
    window = 11  # the anchor and n = 10 drafts
    assert shape.rollback_bytes(window, torch.bfloat16) <= 0.15 * shape.state_bytes
    # Linear in the rows, and doubling both head widths (the state grows fourfold) only doubles it.
    wide = DeltaShape(Hk=16, Hv=48, dk=256, dv=256)
    row, wide_row = (s.rollback_bytes(1, torch.bfloat16) for s in (shape, wide))
    assert shape.rollback_bytes(window, torch.bfloat16) == window * row
    assert wide_row < 2 * row
