"""Data contracts of the gated delta operator: the recurrent state of one layer and the weights around it.

Four rules say who writes what, when, and what is garbage in between:

1. A sequence of committed length ``s`` has, in its slot, the recurrent state after ``s - pending`` tokens.
   The last ``pending`` committed tokens are *not* in ``state`` yet; their inputs to the recurrence lie in
   rows ``0..pending-1`` of ``k_rows``, ``v_rows``, ``g_rows`` and ``beta_rows``, their conv inputs in
   ``conv_rows``.
2. Only ``window``, ``prefill`` and ``commit`` write a slot. ``window`` first replays the ``pending`` rows,
   writes ``state`` once, and runs the new rows without writing it; it then overwrites the row tensors with
   the new window. So a window always consumes the one before it.
3. After a window of ``r`` rows, of which ``c <= r`` become committed, the caller sets ``pending = c`` and
   nothing else: rows ``c..r-1`` are rejected drafts, and like everything from row ``pending`` on they are
   garbage that no later call reads. Rolling back is free, and no snapshot a draft token exists.
4. ``commit`` ends a lag: it writes the state with exactly ``count`` rows replayed, and the matching conv
   history, into a slot (its own or another), whose ``pending`` is 0 from then on. Checkpoints, swaps and
   finish use it.

Slot 0 is the null slot: sequences that only pad a batch point at it, and its contents mean nothing, NaN
included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of one gated delta layer: key heads, value heads, their widths, and the conv kernel's width."""

    Hk: int
    Hv: int
    dk: int
    dv: int
    width: int = 4

    def __post_init__(self) -> None:
        assert min(self.Hk, self.Hv, self.dk, self.dv) > 0 and self.width > 1, self
        assert self.Hv % self.Hk == 0, f"{self.Hv} value heads are not a multiple of {self.Hk} key heads"

    @property
    def key_channels(self) -> int:
        """Channels of all key (or query) heads, K = Hk * dk."""
        return self.Hk * self.dk

    @property
    def value_channels(self) -> int:
        """Channels of all value heads, V = Hv * dv."""
        return self.Hv * self.dv

    @property
    def conv_dim(self) -> int:
        """Channels through the conv, laid out [q (K) | k (K) | v (V)]."""
        return 2 * self.key_channels + self.value_channels

    @property
    def history(self) -> int:
        """Conv inputs that the next row still needs: the conv width less one."""
        return self.width - 1

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one slot and layer; always fp32."""
        return self.Hv * self.dk * self.dv * _FP32_BYTES

    def history_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the conv history of one slot and layer, which plain decoding needs as well."""
        return self.history * self.conv_dim * dtype.itemsize

    def rollback_bytes(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of one slot and layer that exist only so that up to ``rows`` window rows can be taken back.

        Per row: post-conv k and v and the conv inputs in the model dtype, g and beta in fp32. Linear in the
        rows with a factor that does not hold the state's size (Hv * dk * dv) in it.
        """
        row = (self.key_channels + self.value_channels + self.conv_dim) * dtype.itemsize
        return rows * (row + 2 * self.Hv * _FP32_BYTES)

    def slot_bytes(self, rows: int, dtype: torch.dtype) -> int:
        """All bytes of one slot and layer: state, conv history and rollback rows."""
        return self.state_bytes + self.history_bytes(dtype) + self.rollback_bytes(rows, dtype)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DeltaWeights:
    """Weights between a layer's input projection and its output projection.

    ``conv`` [conv_dim, width] model dtype (no bias), tap ``width-1`` meets the newest input; ``A_log`` and
    ``dt_bias`` [Hv] fp32; ``norm`` [dv] model dtype, a plain weight (not zero-centred); ``eps`` of that norm.
    Value head j reads key head ``j // (Hv / Hk)``.
    """

    conv: Tensor
    A_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    eps: float
    Hk: int
    Hv: int
    dk: int
    dv: int

    def __post_init__(self) -> None:
        shape = self.shape
        assert tuple(self.conv.shape) == (shape.conv_dim, shape.width), (self.conv.shape, shape)
        assert tuple(self.A_log.shape) == tuple(self.dt_bias.shape) == (self.Hv,)
        assert self.A_log.dtype == self.dt_bias.dtype == torch.float32, "A_log and dt_bias are kept in fp32"
        assert tuple(self.norm.shape) == (self.dv,) and self.norm.dtype == self.conv.dtype

    @property
    def shape(self) -> DeltaShape:
        """The sizes alone, as ``DeltaState.allocate`` takes them."""
        return DeltaShape(self.Hk, self.Hv, self.dk, self.dv, int(self.conv.shape[1]))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DeltaState:
    """State slots of one layer; the module's docstring says who writes them and what is garbage.

    ``state``    [slots, Hv, dk, dv] fp32: the recurrent state, without the pending rows.
    ``k_rows``   [slots, W, Hk, dk], ``v_rows`` [slots, W, Hv, dv], model dtype: after conv and SiLU, k before
                 its l2 norm.
    ``g_rows``   and ``beta_rows`` [slots, W, Hv] fp32: log decay and write strength.
    ``conv_rows`` [slots, history + W, conv_dim] model dtype: the inputs before the window, then its own.
    """

    state: Tensor
    k_rows: Tensor
    v_rows: Tensor
    g_rows: Tensor
    beta_rows: Tensor
    conv_rows: Tensor

    def __post_init__(self) -> None:
        slots, rows, heads = self.g_rows.shape
        assert self.state.shape[:2] == (slots, heads) and self.state.dtype == torch.float32
        assert self.k_rows.shape[:2] == self.v_rows.shape[:2] == (slots, rows)
        assert self.conv_rows.shape[0] == slots and self.conv_rows.shape[1] > rows
        assert all(t.is_contiguous() for t in self.tensors())

    @property
    def slots(self) -> int:
        """Slots, the null slot included."""
        return int(self.state.shape[0])

    @property
    def rows(self) -> int:
        """W: the longest window that a slot can hold."""
        return int(self.g_rows.shape[1])

    @property
    def history(self) -> int:
        """Conv inputs kept from before the window."""
        return int(self.conv_rows.shape[1]) - self.rows

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor, slot dimension first: what a swap has to move."""
        return (self.state, self.k_rows, self.v_rows, self.g_rows, self.beta_rows, self.conv_rows)

    @classmethod
    def allocate(
        cls,
        slots: int,
        rows: int,
        shape: DeltaShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        fill: float = 0.0,
    ) -> DeltaState:
        """State for ``slots`` slots (slot 0 is the null slot) and windows of up to ``rows`` rows.

        ``fill`` = NaN poisons everything, so that a read of something never written shows.
        """
        assert slots >= 1 and rows >= 1, (slots, rows)

        def make(*dims: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.full((slots, *dims), fill, dtype=dtype, device=device)

        return cls(
            state=make(shape.Hv, shape.dk, shape.dv, dtype=torch.float32),
            k_rows=make(rows, shape.Hk, shape.dk),
            v_rows=make(rows, shape.Hv, shape.dv),
            g_rows=make(rows, shape.Hv, dtype=torch.float32),
            beta_rows=make(rows, shape.Hv, dtype=torch.float32),
            conv_rows=make(shape.history + rows, shape.conv_dim),
        )
