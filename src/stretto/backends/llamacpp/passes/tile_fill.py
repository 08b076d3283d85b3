"""Recomputes a few known rows so that a prompt chunk fills a flash-attention tile.

On a CPU llama.cpp has two flash-attention kernels: one works row by row; the other starts at `tile_rows` rows
of a sequence, works in tiles and costs a tenth per row. 33 rows at context length 800 take three times as
long as the 64 rows that end with them. So a chunk shorter than a tile may begin earlier: the sequence is
trimmed, and known rows run again. Whether that is faster is learned from the passes themselves.

A chunk is also never smaller than the batch-invariant minimum (`ubatches.rows_missing`). The last row of a
prompt whose other rows are all computed is a decode row. Without flash attention there are no tiles, and
`ubatches` alone decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from stretto.backends.llamacpp.passes.ubatches import rows_missing
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.least_squares import LeastSquares
from stretto.core.tick import Tick

SAMPLES_MIN = 3


class TileFill:
    """Learns what rows cost in either kernel; says how many rows a chunk should recompute."""

    def __init__(self, tile_rows: int, *, rows_min: int) -> None:
        self._tile_rows = tile_rows
        self._rows_min = rows_min
        self._single = LeastSquares(3)  # features: the call, rows, rows × context length
        self._tiled = LeastSquares(3)

    def learn(self, tick: Tick, spans: Sequence[int], seconds: float) -> None:
        """Record a call's duration. Calls that used both kernels are left out."""
        counts = [tick.counts[at] for at in spans]
        if min(counts) >= self._tile_rows:
            fit = self._tiled
        elif max(counts) < self._tile_rows:
            fit = self._single
        else:
            return
        contexts = sum(count * (tick.starts[at] + count / 2) for at, count in zip(spans, counts, strict=True))
        fit.update([1.0, float(sum(counts)), contexts], seconds)

    def missing(self, count: int, start: int, before: int | None = None) -> int:
        """Rows before `start` that a chunk of `count` rows should recompute; mostly none.

        `before`: how many there are that can be; default: all.
        """
        before = start if before is None else before
        least = rows_missing(count, before, self._rows_min)
        rows = self._tile_rows - count
        if not 0 < rows <= before or min(self._single.samples, self._tiled.samples) < SAMPLES_MIN:
            return least
        whole = self._tiled.predict([1.0, self._tile_rows, self._tile_rows * (start - rows / 2)])
        return rows if whole < self._single.predict([1.0, count, count * (start + count / 2)]) else least


def widened(tick: Tick, missing: dict[int, int], bound: dict[int, BoundRequest]) -> Tick:
    """The same tick with some spans beginning earlier, by `missing` rows."""
    starts, counts, tokens = array("i", tick.starts), array("i", tick.counts), array("i")
    at = 0
    for span, count in enumerate(tick.counts):
        rows = missing.get(span, 0)
        if rows:
            starts[span] -= rows
            counts[span] += rows
            tokens.extend(bound[tick.slots[span]].known(starts[span], starts[span] + rows))
        tokens.extend(tick.tokens[at : at + count])
        at += count
    return replace(tick, starts=starts, counts=counts, tokens=tokens)
