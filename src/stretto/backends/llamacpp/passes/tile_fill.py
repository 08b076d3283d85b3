"""Prompt chunks made whole: a few known rows are computed again where that is cheaper.

On a CPU flash attention has two kernels: one that goes row by row, and one, from a quantum of rows of a
sequence on, that goes in tiles and costs a tenth. 33 rows behind a context of 800 take three times as long as
the 64 that end with them. So a chunk that is shorter than a quantum begins earlier: the sequence is cut back,
and rows whose tokens are known run again. Whether that pays is learned from the passes themselves.

And a chunk is never so few rows that they would go through the kernels of decoding, which round otherwise
(`ubatches.lacking`). The very last row of a prompt, where all before it is known, is a decode row like any
other. (Without flash attention there are no tiles, and `ubatches` sees to all of this.)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from stretto.backends.llamacpp.passes.ubatches import lacking
from stretto.backends.sampling.bound_request import Seat
from stretto.core.least_squares import LeastSquares
from stretto.core.tick import Tick

SAMPLES_MIN = 3


class Quanta:
    """What rows cost in either kernel, and the rows to begin earlier for each chunk."""

    def __init__(self, quantum: int, *, alike: int) -> None:
        self._quantum = quantum
        self._alike = alike
        self._single = LeastSquares(3)  # a call, a row, a row's context
        self._tiled = LeastSquares(3)

    def learn(self, tick: Tick, spans: Sequence[int], seconds: float) -> None:
        """A call with these spans took so long. Calls that used both kernels teach nothing."""
        counts = [tick.counts[at] for at in spans]
        if min(counts) >= self._quantum:
            fit = self._tiled
        elif max(counts) < self._quantum:
            fit = self._single
        else:
            return
        contexts = sum(count * (tick.starts[at] + count / 2) for at, count in zip(spans, counts, strict=True))
        fit.update([1.0, float(sum(counts)), contexts], seconds)

    def missing(self, count: int, start: int) -> int:
        """Rows before `start` that a chunk of `count` rows should compute again; mostly none."""
        alike = lacking(count, start, self._alike)
        rows = self._quantum - count
        if not 0 < rows <= start or min(self._single.samples, self._tiled.samples) < SAMPLES_MIN:
            return alike
        whole = self._tiled.predict([1.0, self._quantum, self._quantum * (start - rows / 2)])
        return rows if whole < self._single.predict([1.0, count, count * (start + count / 2)]) else alike


def widened(tick: Tick, missing: dict[int, int], seats: dict[int, Seat]) -> Tick:
    """The same tick, in which some spans begin earlier."""
    starts, counts, tokens = array("i", tick.starts), array("i", tick.counts), array("i")
    at = 0
    for span, count in enumerate(tick.counts):
        rows = missing.get(span, 0)
        if rows:
            starts[span] -= rows
            counts[span] += rows
            tokens.extend(seats[tick.slots[span]].known(starts[span], starts[span] + rows))
        tokens.extend(tick.tokens[at : at + count])
        at += count
    return replace(tick, starts=starts, counts=counts, tokens=tokens)
