"""Estimates when a retry is worthwhile: waiting requests divided by the rate at which requests end.

Pure: the clock is an argument. Jitter keeps requests that were rejected together from retrying together.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 60.0
ENDS_MAX = 256
LEAST_S, MOST_S = 1, 120
UNMEASURED_S = 2.0  # per waiting request, before any request has ended
SPREAD = 0.25


class RetryAfter:
    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=ENDS_MAX)

    def ended(self, now_s: float) -> None:
        """A request ended and freed its slot."""
        self._ends.append(now_s)

    def rate(self, now_s: float) -> float | None:
        """Ended requests per second over the last minute; None for fewer than two."""
        while self._ends and self._ends[0] < now_s - WINDOW_S:
            self._ends.popleft()
        if len(self._ends) < 2:
            return None
        return len(self._ends) / max(now_s - self._ends[0], 1e-3)

    def seconds(self, now_s: float, waiting: int, chance: float = 0.5) -> int:
        """`chance` from 0 to 1 shifts the result by up to 25 % in either direction."""
        rate = self.rate(now_s)
        wait_s = (waiting + 1) / rate if rate is not None else UNMEASURED_S * (waiting + 1)
        spread = 1 + SPREAD * (2 * chance - 1)
        return max(LEAST_S, min(MOST_S, math.ceil(wait_s * spread)))
