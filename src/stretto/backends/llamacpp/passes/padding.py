"""Padding rows: dummy decode rows that make a pass contiguous, a multiple of four, or larger than one row.

Each padding row is appended to a sequence that has no row in the pass, and removed as soon as it has run.

- Gaps: llama.cpp runs streams in one pass only where their ids are consecutive. While a prompt is computed
  between decoding sequences, the decode rows would take two passes, and each reads all weights: 12 rows in
  four groups lose a third of the speed.
- Multiples of four: GEMM kernels take rows in groups of four and the rest one by one, so seven rows are
  slower than eight.
- Lone rows: llama.cpp's flash attention splits the context of a single row among the threads, which rounds
  differently, so output would not be batch-invariant. Our own kernel does not (`pad_lone_row`).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.quirks import Quirks
from stretto.model_files.fit import CELLS_MULTIPLE

ANY_TOKEN = 0
CELLS = (
    CELLS_MULTIPLE  # attention covers a multiple of this many cells, the same for every sequence of a pass
)


class Padding:
    def __init__(self, context: Context, memory: KvMemory, quirks: Quirks) -> None:
        self._context = context
        self._memory = memory
        self._quirks = quirks

    def add(self, rows: Rows, closed: Collection[int]) -> list[int]:
        """Add padding to `rows`, one decode row per sequence; returns the sequences that got a padding row.

        `closed` sequences get none. While a copy between streams is pending nothing is padded: the copy would
        include the padding row.
        """
        if self._memory.copying:
            return []
        longest = max(rows.positions)
        room = min(CELLS * (1 + longest // CELLS), self._context.window)
        padding = [gap for gap in self._gaps(rows) if self._is_open(gap, closed, room)]
        self._add(rows, padding)
        for group in _groups(rows):
            beside = {group[0] - 1, group[-1] + 1}.difference(rows.sequences)
            if len(group) == 1 and self._quirks.pad_lone_row and longest >= CELLS:
                able = [at for at in beside if self._is_open(at, closed, self._context.window)]
            elif self._quirks.pad_to_four and len(group) % 4 == 3:
                able = [
                    at for at in beside if self._is_open(at, closed, CELLS)
                ]  # a longer sequence costs more
            else:
                continue
            shortest = sorted(able, key=self._length)[:1]
            self._add(rows, shortest)
            padding += shortest
        return padding

    def remove(self, padding: list[int]) -> None:
        for sequence in padding:
            self._context.remove(sequence, self._length(sequence))

    def _length(self, sequence: int) -> int:
        return self._memory.lengths[sequence]

    def _is_open(self, sequence: int, closed: Collection[int], room: int) -> bool:
        """Whether it holds what we counted, and less than `room`: a longer one slows down all rows."""
        if not 0 <= sequence < self._context.n_seq_max or sequence in closed:
            return False
        held = self._length(sequence)
        return held < room and self._context.positions(sequence)[1] + 1 == held

    def _gaps(self, rows: Rows) -> list[int]:
        """Gaps of a single sequence; filling a wider one costs as much as a second pass."""
        if not self._quirks.pad_gaps:
            return []
        return [before + 1 for before, after in pairwise(rows.sequences) if after - before == 2]

    def _add(self, rows: Rows, padding: list[int]) -> None:
        for sequence in padding:
            rows.add_padding(sequence, self._length(sequence), ANY_TOKEN)


def _groups(rows: Rows) -> list[list[int]]:
    """Runs of consecutive sequence ids: each is one pass."""
    groups: list[list[int]] = []
    for sequence in rows.sequences:
        if groups and sequence == groups[-1][-1] + 1:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
