"""Rows that nobody reads, where a pass is better with one more.

Each is a row behind what its sequence holds, forgotten as soon as it has run. There are three reasons.
Streams run as one pass only where their ids follow one another: while a prompt is computed between sequences
that write, these would run in two passes, and each reads all weights; of 12 rows in four groups a third of
the time is lost. Matrix kernels take rows in fours, and the rest one by one: seven rows are slower than
eight. And llama.cpp's flash attention divides a long text among the threads where a row is alone, which
rounds otherwise (`companions`; our own does not).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.memory.kv_memory import Memory
from stretto.backends.llamacpp.native.batch import Rows

ANY_TOKEN = 0
CELLS = 256  # llama.cpp looks at so many at a time, in every sequence of a pass as many as in the longest one


class Holes:
    def __init__(self, context: Context, memory: Memory, *, fours: bool, companions: bool) -> None:
        self._context = context
        self._companions = companions and context.by_row
        self._memory = memory
        self._fours = fours

    def fill(self, rows: Rows, closed: Collection[int]) -> list[int]:
        """Adds rows to these, which are one of each sequence, and answers the sequences that they are in.

        Not in those that are `closed`, and none while a copy is pending: it would take the row along.
        """
        if self._memory.copying:
            return []
        longest = max(rows.positions)
        room = min(CELLS * (1 + longest // CELLS), self._context.window)
        holes = [gap for gap in _gaps(rows) if self._is_open(gap, closed, room)]
        self._add(rows, holes)
        for group in _groups(rows):
            beside = {group[0] - 1, group[-1] + 1}.difference(rows.sequences)
            if len(group) == 1 and self._companions and longest >= CELLS:
                able = [at for at in beside if self._is_open(at, closed, self._context.window)]
            elif self._fours and len(group) % 4 == 3:
                able = [at for at in beside if self._is_open(at, closed, CELLS)]  # a long one costs more
            else:
                continue
            shortest = sorted(able, key=self._length)[:1]
            self._add(rows, shortest)
            holes += shortest
        return holes

    def forget(self, holes: list[int]) -> None:
        for hole in holes:
            self._context.remove(hole, self._length(hole))

    def _length(self, sequence: int) -> int:
        return self._memory.lengths[sequence]

    def _is_open(self, sequence: int, closed: Collection[int], room: int) -> bool:
        """Does it hold what we think, and less than `room`? All rows pay for a sequence that is longer."""
        if not 0 <= sequence < self._context.n_seq_max or sequence in closed:
            return False
        held = self._length(sequence)
        return held < room and self._context.positions(sequence)[1] + 1 == held

    def _add(self, rows: Rows, holes: list[int]) -> None:
        for hole in holes:
            rows.add_unread(hole, self._length(hole), ANY_TOKEN)


def _gaps(rows: Rows) -> list[int]:
    """Of one sequence: two rows cost as much as a pass."""
    return [before + 1 for before, after in pairwise(rows.sequences) if after - before == 2]


def _groups(rows: Rows) -> list[list[int]]:
    """Sequences that run as one pass."""
    groups: list[list[int]] = []
    for sequence in rows.sequences:
        if groups and sequence == groups[-1][-1] + 1:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
