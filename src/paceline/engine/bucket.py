"""A decode step in a bucket of fixed size: drafts, verification and commit as one piece of device work.

Everything the step reads lies in device tensors at fixed addresses (`WindowLayout` and the anchors), so
on CUDA the whole step is captured in one graph and replayed with other lengths, tables, slots and
acceptances. On any device the same function runs eagerly, which is what a replay must equal.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.engine.layout import WindowLayout
from paceline.engine.step import StepParts, Verified, chooser, verify_windows
from paceline.speculate.base import DraftRequest
from paceline.speculate.recall import NOTHING

if TYPE_CHECKING:
    from paceline.engine.plan import Window


@dataclass(frozen=True, slots=True)
class BucketSize:
    """Static sizes of a bucket; one graph is captured for each."""

    num_seqs: int
    max_rows: int
    max_blocks: int
    block_size: int

    @property
    def max_context(self) -> int:
        """Positions that the block tables reach."""
        return self.max_blocks * self.block_size


class DecodeBucket:
    """One bucket: load the windows, run (or replay) the step, read what it accepted."""

    def __init__(
        self,
        parts: StepParts,
        size: BucketSize,
        device: torch.device,
        draft_method: Literal["greedy", "coupled"],
        pool: Any = None,
    ):
        """`pool`: a handle of memory that captured steps share (see `torch.cuda.graph`); None: its own."""
        self.parts, self.size, self.draft_method, self._pool = parts, size, draft_method, pool
        self.layout = WindowLayout(
            num_seqs=size.num_seqs,
            max_rows=size.max_rows,
            max_blocks=size.max_blocks,
            block_size=size.block_size,
            max_context=size.max_context,
            device=device,
        )
        self.anchors = torch.zeros(size.num_seqs, dtype=torch.int64, device=device)
        self.recalled: torch.Tensor | None = None
        if parts.proposer and parts.proposer.looks_back and size.max_rows > 1:
            self.recalled = torch.full((size.num_seqs, size.max_rows), NOTHING, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Verified | None = None

    def load(self, windows: ListLike[Window]) -> None:
        """Bring the windows' numbers to the device, without waiting for it."""
        self.layout.load(windows)
        self._upload(self.anchors, [w.sequence.anchor for w in windows], 0)
        if self.recalled is not None:
            width = self.recalled.shape[1] - 1
            self._upload(self.recalled, [w.sequence.recall(width) for w in windows], NOTHING)

    def _upload(self, held: torch.Tensor, rows: list[Any], padding: int) -> None:
        """Rows of the windows into a tensor that the step reads; the rest is padding."""
        host = torch.full(held.shape, padding, dtype=torch.int64, pin_memory=held.is_cuda)
        host[: len(rows)] = torch.tensor(rows)
        held.copy_(host, non_blocking=True)

    def step(self) -> Verified:
        """Run the loaded step eagerly."""
        batch = self.layout.batch()
        drafts = self.anchors.new_zeros(self.size.num_seqs, self.size.max_rows - 1)
        if self.parts.proposer and self.size.max_rows > 1:
            drafts = self.parts.proposer.propose(self._request()).tokens
        return verify_windows(self.parts, batch, self.anchors, drafts)

    def run(self) -> Verified:
        """Replay the captured step, or run it eagerly where none was captured."""
        if self._graph is None or self._result is None:
            return self.step()
        self._graph.replay()
        return self._result

    def capture(self) -> None:
        """Capture the step (CUDA). The bucket must be loaded with padding alone: capturing runs nothing
        that lasts, but the passes before it do."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # kernels compile and libraries allocate outside the graph
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._result = self.step()
        self._graph = graph

    def _request(self) -> DraftRequest:
        layout, n = self.layout, self.size.max_rows - 1
        return DraftRequest(
            anchors=self.anchors,
            lengths=layout.lengths,
            slots=layout.slots,
            block_tables=layout.block_tables,
            limits=[n] * self.size.num_seqs,
            rows=layout.rows,
            histories=None,
            choose=chooser(
                self.parts.sampler, layout.slots, layout.lengths, self.draft_method, self.recalled
            ),
            max_context=self.size.max_context,
            recalled=self.recalled,
        )
