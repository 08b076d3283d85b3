"""Requests on their way to the batcher: the server is reading, checking or preparing them.

The server announces a request when its head is there (`arriving`); the engine notes that it has come when it
asks for anything (`came`, found by the context of the task and of those it starts). A hold in the batcher can
so end as soon as nothing more is coming. A request that takes its time, e.g. one whose body comes slowly, is
waited for no longer than `window_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_current: ContextVar[Arrival | None] = ContextVar("stretto_arrival", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """One request that was announced."""

    since_s: float


class Arrivals:
    """`settled` is called when the last one that was waited for has come or has gone."""

    def __init__(self, *, window_s: float, clock: Callable[[], float], settled: Callable[[], None]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._settled = settled
        self._coming: dict[Arrival, None] = {}  # the oldest first

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
        """The request of this task is here; once is enough, more is harmless."""
        arrival = _current.get()
        if arrival is not None:
            self._remove(arrival)

    def until_s(self) -> float:
        """How long to wait for what is coming: until the youngest is too old; -inf when nothing is."""
        return next(reversed(self._coming)).since_s + self._window_s if self._coming else float("-inf")

    def _remove(self, arrival: Arrival) -> None:
        if self._coming.pop(arrival, arrival) is None and not self._coming:
            self._settled()
