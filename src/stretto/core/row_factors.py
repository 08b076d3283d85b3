"""How far the time of a decode pass is from the fitted line, by its number of rows.

Kernels work in groups of rows: the line through one and eight rows says little about nine. Each number of
rows that was measured has a factor, measured over predicted; one that was not lies between its neighbours.
"""

from __future__ import annotations

WEIGHT = 0.2  # of a new measurement
LOWEST, HIGHEST = 0.5, 3.0
ROWS_APART = 32  # numbers of rows from here on count in steps of eight


class RowFactors:
    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._between: dict[int, float] = {}  # numbers of rows that were asked for and not measured

    def observe(self, rows: int, ratio: float) -> None:
        """A pass of so many rows took `ratio` times what was predicted."""
        step, ratio = _step(rows), min(HIGHEST, max(LOWEST, ratio))
        known = self._known.get(step, ratio)
        self._known[step] = known + WEIGHT * (ratio - known)
        self._between.clear()

    def of(self, rows: int) -> float:
        step = _step(rows)
        found = self._known.get(step) or self._between.get(step)
        if found is None:
            found = self._between[step] = self._interpolated(step)
        return found

    def _interpolated(self, step: int) -> float:
        below = max((at for at in self._known if at < step), default=None)
        above = min((at for at in self._known if at > step), default=None)
        if below is None or above is None:
            nearest = below if above is None else above
            return 1.0 if nearest is None else self._known[nearest]
        share = (step - below) / (above - below)
        return self._known[below] * (1.0 - share) + self._known[above] * share


def _step(rows: int) -> int:
    return rows if rows < ROWS_APART else rows - rows % 8
