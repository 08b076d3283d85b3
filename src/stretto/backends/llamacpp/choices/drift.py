"""Whether decode passes still take what was measured when the choices were made.

A processor that now runs at another speed, or a machine that was moved, makes choices stale. The lower
quartile of many passes counts, not their mean: neighbours and long contexts only add. A model in use keeps
its choices; they are forgotten on disk, and the next load measures again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stretto.backends.llamacpp.calibration import PassFigures
from stretto.core.tick import Tick

CONTEXT_MAX = 256  # mean context length of the passes that count: longer ones take longer
PASSES = 256  # in a window
WINDOWS = 4  # that all depart, one after the other
FACTOR = 1.8

_log = logging.getLogger("stretto.choices")


class Drift:
    def __init__(self, figures: PassFigures, *, on_stale: Callable[[], None]) -> None:
        self._figures = figures
        self._on_stale = on_stale
        self._ratios: list[float] = []
        self._departed = 0
        self.stale = False

    def note(self, tick: Tick, pass_s: float) -> None:
        """A tick that has run; only those with nothing but decode rows count."""
        rows = len(tick.slots)
        if self.stale or tick.ops or tick.decode_spans != rows or tick.rows != rows:
            return
        if sum(tick.starts) <= CONTEXT_MAX * rows:
            self.note_pass(rows, pass_s)

    def note_pass(self, rows: int, pass_s: float) -> None:
        self._ratios.append(pass_s / self._expected_s(rows))
        if len(self._ratios) < PASSES:
            return
        quartile = sorted(self._ratios)[PASSES // 4]
        self._ratios.clear()
        self._departed = 0 if 1 / FACTOR <= quartile <= FACTOR else self._departed + 1
        if self._departed == WINDOWS:
            self.stale = True
            _log.info("passes take %.1f times what was measured: measured again at the next load", quartile)
            self._on_stale()

    def _expected_s(self, rows: int) -> float:
        known = self._figures
        if known.rows < 2:
            return known.one_s
        return max(known.one_s, known.one_s + (known.many_s - known.one_s) * (rows - 1) / (known.rows - 1))
