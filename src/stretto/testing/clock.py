"""A clock that moves only when told to."""

from __future__ import annotations


class FakeClock:
    def __init__(self, start_s: float = 1000.0) -> None:
        self.now = start_s

    def advance(self, seconds: float) -> float:
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self.now += seconds
        return self.now

    def advance_to(self, moment_s: float) -> float:
        self.now = max(self.now, moment_s)
        return self.now
