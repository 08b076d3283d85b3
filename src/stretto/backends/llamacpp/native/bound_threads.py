"""Pins each thread that computes passes to a processor, while work of lower priority runs beside them.

Otherwise the kernel may put two of them on one processor while low-priority work has the other, and leave
them there for tens of milliseconds: then each barrier of a pass lasts until one of them sleeps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence


class BoundThreads:
    """Threads that a bound one starts would be bound as it is."""

    def __init__(self) -> None:
        self._threads: tuple[int, ...] = ()
        self._allowed: set[int] = set()

    def bind(self, threads: Sequence[int]) -> None:
        """Only where there is one thread for each processor that this process may use."""
        if self._threads or not hasattr(os, "sched_setaffinity"):
            return
        allowed = os.sched_getaffinity(0)
        if len(threads) != len(allowed):
            return
        self._threads, self._allowed = tuple(threads), allowed
        for thread, processor in zip(self._threads, sorted(allowed), strict=True):
            _allow(thread, {processor})

    def release(self) -> None:
        for thread in self._threads:
            _allow(thread, self._allowed)
        self._threads = ()


def _allow(thread: int, processors: set[int]) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.sched_setaffinity(thread, processors)
