"""Random gated delta layers for the tests, and the two implementations that they compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.gated_delta import DeltaShape, DeltaState, DeltaWeights, cpu, reference

NATIVE: Any = cpu.native()
IMPLEMENTATIONS: list[Any] = [reference] if NATIVE is None else [reference, NATIVE]
NAMES = ["reference", "native"][: len(IMPLEMENTATIONS)]

# Three value heads a key head; widths that fill registers, that do not, and that need several column tiles.
SHAPES = [
    DeltaShape(Hk=2, Hv=6, dk=16, dv=32),
    DeltaShape(Hk=3, Hv=3, dk=8, dv=24),
    DeltaShape(Hk=1, Hv=2, dk=40, dv=100),
    DeltaShape(Hk=1, Hv=3, dk=128, dv=128),
]
# With random weights some rows have q and k nearly orthogonal; at 1e-6 the norm would blow the rounding error
# of such an o up to any size, and a comparison at 1e-5 would say nothing.
NORM_EPS = 1e-3


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@dataclass
class Layer:
    """Weights, NaN-poisoned state, and a source of projected rows."""

    weights: DeltaWeights
    st: DeltaState
    generator: torch.Generator

    @classmethod
    def make(cls, shape: DeltaShape, dtype: torch.dtype, *, slots: int = 6, rows: int = 8) -> Layer:
        g = torch.Generator().manual_seed(0)
        weights = DeltaWeights(
            conv=torch.randn(shape.conv_dim, shape.width, generator=g).mul_(0.5).to(dtype),
            A_log=torch.rand(shape.Hv, generator=g).mul_(8).add_(0.01).log_(),
            dt_bias=torch.randn(shape.Hv, generator=g),
            norm=torch.rand(shape.dv, generator=g).add_(0.5).to(dtype),
            eps=NORM_EPS,
            Hk=shape.Hk,
            Hv=shape.Hv,
            dk=shape.dk,
            dv=shape.dv,
        )
        return cls(weights, DeltaState.allocate(slots, rows, shape, dtype, fill=float("nan")), g)

    def rows(self, count: int) -> tuple[Tensor, ...]:
        """qkv, z, b, a: strided views of one fused projection."""
        shape = self.weights.shape
        widths = [shape.conv_dim, shape.value_channels, shape.Hv, shape.Hv]
        fused = torch.randn(count, sum(widths) + 3, generator=self.generator).to(self.weights.conv.dtype)
        return fused[:, : sum(widths)].split(widths, dim=-1)

    def twin(self) -> Layer:
        """The same layer with a copy of the state."""
        return Layer(self.weights, DeltaState(*(t.clone() for t in self.st.tensors())), self.generator)

    def prefill(self, op: Any, rows: Sequence[Tensor], slot: int, *, fresh: bool = True) -> Tensor:
        """All rows go to one sequence."""
        index = (ints(slot), torch.tensor([fresh]), ints(0), ints(rows[0].shape[0]))
        return op.prefill(*rows, self.weights, self.st, *index)

    def window(self, op: Any, rows: Sequence[Tensor], slot: int, pending: int) -> Tensor:
        """All rows are one sequence's window."""
        index = (ints(slot), ints(pending), ints(0), ints(rows[0].shape[0]))
        return op.window(*rows, self.weights, self.st, *index, self.st.rows)

    def decode(self, op: Any, rows: Sequence[Tensor], slot: int, pending: int) -> Tensor:
        """One token a call, nothing drafted; the last row is left pending."""
        out = []
        for i in range(rows[0].shape[0]):
            out.append(self.window(op, [x[i : i + 1] for x in rows], slot, pending))
            pending = 1
        return torch.cat(out)

    def committed(self, op: Any, slot: int, pending: int) -> tuple[Tensor, Tensor]:
        """State and conv history of a slot with its pending rows replayed, without changing the slot."""
        copy = self.twin()
        op.commit(copy.st, ints(slot), ints(slot), ints(pending))
        return copy.st.state[slot], copy.st.conv_rows[slot, : copy.st.history]
