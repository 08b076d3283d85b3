"""When another try is worth it: requests that wait, divided by the rate at which requests end.

Pure: the clock is an argument. Spread by a little chance, so that those refused together do not return
together.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 60.0
ENDS_MAX = 256
LEAST_S, MOST_S = 1, 120
UNMEASURED_S = 2.0  # for each request that waits, before anything has ended
SPREAD = 0.25


class RetryAfter:
    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=ENDS_MAX)

    def ended(self, now_s: float) -> None:
        """A request ended, and its slot is free."""
        self._ends.append(now_s)

    def rate(self, now_s: float) -> float | None:
        """Requests that end in a second, over the last minute; None where fewer than two did."""
        while self._ends and self._ends[0] < now_s - WINDOW_S:
            self._ends.popleft()
        if len(self._ends) < 2:
            return None
        return len(self._ends) / max(now_s - self._ends[0], 1e-3)

    def seconds(self, now_s: float, waiting: int, chance: float = 0.5) -> int:
        """`chance` from 0 to 1 moves the answer by up to a quarter, either way."""
        rate = self.rate(now_s)
        wait_s = (waiting + 1) / rate if rate is not None else UNMEASURED_S * (waiting + 1)
        spread = 1 + SPREAD * (2 * chance - 1)
        return max(LEAST_S, min(MOST_S, math.ceil(wait_s * spread)))
