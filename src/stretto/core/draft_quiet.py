"""Ticks in which no slot is asked for drafts, because they were just found not to pay: asking takes time."""

from __future__ import annotations


class QuietTicks:
    """For which numbers of slots nothing is asked, and until which tick: requests come and go meanwhile."""

    def __init__(self) -> None:
        self._tick = 0
        self._until: dict[int, int] = {}

    def begin(self, slots: int, ticks: int) -> None:
        self._until[slots] = self._tick + ticks

    def passes(self, slots: int) -> bool:
        """Whether the next tick, of so many slots, is one of them."""
        self._tick += 1
        return self._tick < self._until.get(slots, 0)
