"""Turns of adapter groups, for backends where all rows of a tick have the same adapters.

Groups with rows to run take turns, one after the other: a new group comes last, a group that has run goes to
the end. A turn is one tick, or as many as keep the changes of adapters within `CHANGE_SHARE` of the time, as
the cost model has learned them, but no more than `TURN_MAX_S`. So a group waits for at most one turn of each
other group, and no turn takes longer than `TURN_MAX_S` and a tick.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.core.cost import CostModel
from stretto.core.request import AdapterGroup

CHANGE_SHARE = 0.1  # of the time may go into changes of adapters
TURN_MAX_S = 0.25
EXPLORE_EVERY = 8  # turns: one of two ticks at least, because the second tells what the change took


class GroupRotation:
    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._line: list[AdapterGroup] = []  # the one whose turn it is comes first
        self._current: AdapterGroup | None = None
        self._started_s = 0.0
        self._ticks = 0
        self._turns = 0

    @property
    def turn_s(self) -> float:
        """After so long another group has its turn."""
        return min(TURN_MAX_S, self._cost.change_s / CHANGE_SHARE)

    def order(self, groups: Iterable[AdapterGroup], now: float) -> list[AdapterGroup]:
        """The groups in the order in which they may have this tick: the first that has rows takes it."""
        present = dict.fromkeys(groups)
        self._line = [group for group in self._line if group in present]
        self._line += [group for group in present if group not in self._line]
        if self._is_over(now) and self._line and self._line[0] == self._current:
            self._line.append(self._line.pop(0))
        return list(self._line)

    def took(self, group: AdapterGroup, now: float) -> bool:
        """This group has a tick. Returns whether the tick before it had other adapters."""
        if group == self._current and not self._is_over(now):
            self._ticks += 1
            return False
        if self._current in self._line:  # also where it had no rows left to run before its turn was over
            self._line.remove(self._current)
            self._line.append(self._current)
        self._line.remove(group)
        self._line.insert(0, group)
        changes = group != (self._current or ())
        self._current, self._started_s, self._ticks = group, now, 1
        self._turns += 1
        return changes

    def _is_over(self, now: float) -> bool:
        least = 2 if self._turns % EXPLORE_EVERY == 0 else 1
        return self._ticks >= least and now - self._started_s >= self.turn_s
