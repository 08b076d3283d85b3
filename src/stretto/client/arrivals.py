"""Requests that have not reached the batcher yet: the server is reading, validating or preparing them.

The server announces a request once its headers are read (`arriving`); it counts as arrived at its first call
to the client (`came`, tracked through the task's context and its child tasks). The batcher can therefore end
a hold as soon as no announced request is outstanding. A slow request, e.g. one with a slow body, is waited
for at most `window_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_current: ContextVar[Arrival | None] = ContextVar("stretto_arrival", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """One announced request."""

    since_s: float


class Arrivals:
    """`settled` is called when the last outstanding request has arrived or was dropped."""

    def __init__(self, *, window_s: float, clock: Callable[[], float], settled: Callable[[], None]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._settled = settled
        self._coming: dict[Arrival, None] = {}  # oldest first

    @contextmanager
    def arriving(self) -> Iterator[None]:
        arrival = Arrival(self._clock())
        self._coming[arrival] = None
        token = _current.set(arrival)
        try:
            yield
        finally:
            _current.reset(token)
            self._remove(arrival)

    def came(self) -> None:
        """The current task's request has arrived. Idempotent."""
        arrival = _current.get()
        if arrival is not None:
            self._remove(arrival)

    def until_s(self) -> float:
        """Until when outstanding requests are worth waiting for; -inf if there are none."""
        return next(reversed(self._coming)).since_s + self._window_s if self._coming else float("-inf")

    def _remove(self, arrival: Arrival) -> None:
        if self._coming.pop(arrival, arrival) is None and not self._coming:
            self._settled()
