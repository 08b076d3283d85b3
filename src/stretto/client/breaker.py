"""Circuit breaker: after consecutive failures, reject calls for a while, then let one probe through.

Pure: `now_s` is an argument. The open period starts at the failure that opens it. (The original took the
start of the failing call, so after a long time-out the open period was already over.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Circuit(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@dataclass(slots=True)
class CircuitBreaker:
    failures_max: int = 5  # in a row
    open_s: float = 10.0
    successes_to_close: int = 2
    state: Circuit = Circuit.CLOSED
    opened_s: float = 0.0
    times_opened: int = 0
    _failures: int = 0
    _successes: int = 0
    _probing: bool = False

    def admit(self, now_s: float) -> bool:
        """Whether a call may be made; in the half-open state, one at a time."""
        if self.state is Circuit.CLOSED:
            return True
        if self.state is Circuit.OPEN:
            if now_s - self.opened_s < self.open_s:
                return False
            self.state, self._successes, self._probing = Circuit.HALF_OPEN, 0, False
        if self._probing:
            return False
        self._probing = True
        return True

    def retry_after_s(self, now_s: float) -> float:
        return max(0.0, self.opened_s + self.open_s - now_s) if self.state is Circuit.OPEN else 0.0

    def success(self) -> None:
        self._failures = 0
        if self.state is not Circuit.HALF_OPEN:
            return
        self._probing = False
        self._successes += 1
        if self._successes >= self.successes_to_close:
            self.state = Circuit.CLOSED

    def failure(self, now_s: float) -> None:
        self._failures += 1
        if self.state is Circuit.HALF_OPEN or self._failures >= self.failures_max:
            self._open(now_s)

    def _open(self, now_s: float) -> None:
        if self.state is not Circuit.OPEN:
            self.times_opened += 1
        self.state, self.opened_s, self._failures, self._probing = Circuit.OPEN, now_s, 0, False

    def abandoned(self) -> None:
        """A call was abandoned: its outcome is unknown and counts neither as success nor as failure."""
        self._probing = False
