"""Gated delta rule with replay windows: conv, gates, recurrence and gated norm of one GatedDeltaNet layer.

Formulas: transformers 5.24 ``modeling_qwen3_5.py`` (torch path); state and rollback: ``base``. CPU tensors go
to the native code where it is live, everything else to the torch reference.

Arguments that the operators share: ``qkv`` [R, conv_dim], ``z`` [R, Hv*dv], ``b`` and ``a`` [R, Hv] are
row-strided views of one fused projection in the model dtype; sequence ``i`` of S owns rows ``row_start[i]``
.. ``+row_count[i]`` and slot ``slots[i]`` (all int64, contiguous, same device). A live slot occurs once a
call; slot 0 marks padding sequences. Rows that no sequence owns come out as zero and leave no trace.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from paceline.kernels.gated_delta import cpu, reference
from paceline.kernels.gated_delta.base import DeltaShape, DeltaState, DeltaWeights

__all__ = ["DeltaShape", "DeltaState", "DeltaWeights", "commit", "prefill", "window"]

_native = cache(cpu.native)


def window(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    weights: DeltaWeights,
    st: DeltaState,
    slots: Tensor,
    pending: Tensor,
    row_start: Tensor,
    row_count: Tensor,
    max_rows: int,
) -> Tensor:
    """Replay each slot's ``pending`` rows, write its state once, and run its new window on top: [R, Hv*dv].

    ``row_count[i] <= max_rows <= W``. The output is gated and normed, ready for the output projection; the
    new window's inputs lie in the slot afterwards, its effect on the state does not. Row by row with one
    arithmetic, so that results do not depend on how tokens were grouped into windows. Nothing is read on the
    host: a step can be captured in a CUDA graph. AssertionError for indices out of range (native code).
    """
    op = _native() if qkv.is_cpu else None
    run = op.window if op else reference.window
    return run(qkv, z, b, a, weights, st, slots, pending, row_start, row_count, max_rows)


def prefill(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    weights: DeltaWeights,
    st: DeltaState,
    slots: Tensor,
    fresh: Tensor,
    row_start: Tensor,
    row_count: Tensor,
) -> Tensor:
    """Run any number of rows a sequence and store the state after the last one: [R, Hv*dv].

    ``fresh`` [S] bool: start from a zero state and zero conv history, whatever the slot holds. Otherwise the
    slot must have nothing pending (``commit`` it first). Afterwards nothing is pending. The native code goes
    row by row, so that it does not matter where a prompt is cut; the reference goes in chunks of 64 from the
    call's first row, so there a deterministic caller cuts at multiples of 64 only. Reads the index tensors on
    the host.
    """
    op = _native() if qkv.is_cpu else None
    run = op.prefill if op else reference.prefill
    return run(qkv, z, b, a, weights, st, slots, fresh, row_start, row_count)


def commit(st: DeltaState, src_slots: Tensor, dst_slots: Tensor, counts: Tensor) -> None:
    """Write the state of ``src_slots`` after its first ``counts`` stored rows into ``dst_slots`` (all [S]).

    The matching conv history goes along; nothing is pending in a destination afterwards. A destination may be
    its own source, but no other sequence's source or destination.
    """
    op = _native() if st.state.is_cpu else None
    run = op.commit if op else reference.commit
    run(st, src_slots, dst_slots, counts)
