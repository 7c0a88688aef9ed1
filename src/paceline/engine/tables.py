"""Host copies of block tables, kept from step to step: a table of thousands of blocks seldom changes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.engine.sequence import Sequence

Ints = npt.NDArray[np.int64]


class HostTables:
    """Rows of block ids, padded with 0; row by row brought up to date only when its table has changed.

    There are as many rows as the largest that was put, and at least `rows`.
    """

    def __init__(self, rows: int, max_blocks: int) -> None:
        self.ids: Ints = np.zeros((rows, max_blocks), np.int64)
        self._state: list[tuple[Sequence, int] | None] = [None] * rows

    def put(self, row: int, sequence: Sequence) -> None:
        """Make `row` the table of a sequence."""
        if row >= len(self._state):
            more = max(row + 1, 2 * len(self._state)) - len(self._state)
            self.ids = np.concatenate([self.ids, np.zeros((more, self.ids.shape[1]), np.int64)])
            self._state += [None] * more
        state = (sequence, sequence.table_version)
        if self._state[row] != state:
            blocks = sequence.blocks
            self.ids[row, : len(blocks)] = blocks
            self.ids[row, len(blocks) :] = 0
            self._state[row] = state
