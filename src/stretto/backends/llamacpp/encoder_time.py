"""Shares the processors between ticks and an encoder of pictures that takes many ticks' time.

Such an encoder runs on threads that the kernel lets run only where no other thread wants a processor
(SCHED_IDLE), so a tick takes about as long as without it. What the encoder gets is the time that the tick
thread leaves before each tick: a share of the last one. Where the kernel has no such threads, or other
processes keep the processors busy, so that they would hardly ever run, they have a lower priority instead.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

SHARE = 0.4  # of a tick, after which it leaves the processors to the encoder
NICENESS = 7  # where that is not possible: a fifth of a processor that others want, too


class EncoderTime:
    """One for each encoder. `is_crowded`: whether other processes take processors away."""

    def __init__(self) -> None:
        self.is_crowded: Callable[[], bool] = lambda: False
        self.is_encoding = False  # now; any thread may ask
        self._over = threading.Event()
        self._over.set()
        self._begins = False  # what prepared its picture has just taken time from the ticks

    @property
    def is_left_time(self) -> bool:
        """Whether an encoder computes that runs in the time that ticks leave."""
        return not self._over.is_set()

    def leave(self, tick_s: float) -> None:
        """Called before a tick, with what the last one took. Returns at once where no encoder needs it,

        and before the first tick of one that begins.
        """
        if not self._over.is_set() and not self._begins:
            self._over.wait(SHARE * tick_s)
        self._begins = False

    @contextlib.contextmanager
    def taken(self, *, long: bool) -> Iterator[None]:
        """For work on the calling thread and those that it starts. Threads with long work must end with it:

        they lose their priority for good.
        """
        if long and (self.is_crowded() or not _run_when_idle()):
            _lower_priority()
        elif long:
            self._begins = True
            self._over.clear()
        self.is_encoding = True
        try:
            yield
        finally:
            self._over.set()
            self.is_encoding = False


def _run_when_idle() -> bool:
    """Whether this thread now runs only where no other thread wants to."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (OSError, AttributeError):  # not on every system
        return False
    return True


def _lower_priority() -> None:
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
