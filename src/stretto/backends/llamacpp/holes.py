"""Rows that nobody reads, where a gap in the ids would cost a pass of its own.

Streams run as one pass only where their ids follow one another. While a prompt is computed between sequences
that write, these run in two passes, and each reads all weights: of 12 rows in four groups a third of the time
is lost. So the gap takes part: one row behind what its sequence holds, forgotten as soon as it has run.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from stretto.backends.llamacpp.batch import Rows
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.kvops import Memory

ANY_TOKEN = 0
CELLS = 256  # llama.cpp looks at so many at a time, in every sequence of a pass as many as in the longest one


class Holes:
    def __init__(self, context: Context, memory: Memory) -> None:
        self._context = context
        self._memory = memory

    def fill(self, rows: Rows, closed: Collection[int]) -> list[int]:
        """Adds rows in the gaps between the others, and answers the sequences that these are in.

        Only gaps of one sequence: two rows cost as much as a pass. None that is longer than those who write,
        for all would pay for its length. Not the sequences that are `closed`, and none while a copy is
        pending: it would take the row along.
        """
        gaps = [before + 1 for before, after in pairwise(rows.sequences) if after - before == 2]
        if not gaps or self._memory.copying or len(rows) + len(gaps) > self._context.n_batch:
            return []
        lengths = self._memory.lengths
        room = min(CELLS * (1 + max(rows.positions) // CELLS), self._context.window)
        holes = [gap for gap in gaps if gap not in closed and lengths[gap] < room]
        holes = [hole for hole in holes if self._context.positions(hole)[1] + 1 == lengths[hole]]
        for hole in holes:
            rows.add_unread(hole, lengths[hole], ANY_TOKEN)
        return holes

    def forget(self, holes: list[int]) -> None:
        for hole in holes:
            self._context.remove(hole, self._memory.lengths[hole])
