"""Shares the processors between ticks and an encoder of pictures that takes many ticks' time.

Such an encoder runs on threads that the kernel lets run only where no other thread wants a processor
(SCHED_IDLE), so a tick takes about as long as without it. What the encoder gets is the time that the tick
thread leaves before each tick: a share of the last one. The same holds for what prepares its pictures. Where
the kernel has no such threads, or other processes keep the processors busy, so that they would hardly ever
run, they have a lower priority instead.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

SHARE = 0.2  # of a tick, after which it leaves the processors to the encoder
NICENESS = 7  # where that is not possible: a fifth of a processor that others want, too


class EncoderTime:
    """One for each encoder. `is_crowded`: whether other processes take processors away.

    `begins` is called by any thread when something begins to run in the time that ticks leave, and `ends`
    when nothing does any more.
    """

    def __init__(self) -> None:
        self.is_crowded: Callable[[], bool] = lambda: False
        self.begins: Callable[[], None] = lambda: None
        self.ends: Callable[[], None] = lambda: None
        self.is_encoding = False  # now; any thread may ask
        self._over = threading.Event()
        self._over.set()
        self._running = 0  # threads with work in the time that ticks leave
        self._lock = threading.Lock()

    @property
    def is_left_time(self) -> bool:
        """Whether something runs in the time that ticks leave."""
        return not self._over.is_set()

    def leave(self, tick_s: float) -> None:
        """Called before a tick, with what the last one took. Returns at once where nothing needs it."""
        if not self._over.is_set():
            self._over.wait(SHARE * tick_s)

    @contextlib.contextmanager
    def taken(self, *, long: bool) -> Iterator[None]:
        """For an encoder on the calling thread and those that it starts, one at a time."""
        self.is_encoding = True
        try:
            with self.left() if long else contextlib.nullcontext():
                if long:
                    self.give_way()
                yield
        finally:
            self.is_encoding = False

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """While this is held, each tick waits before it starts (`leave`), unless other processes are busy."""
        if self.is_crowded() or not hasattr(os, "SCHED_IDLE"):
            yield
            return
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def give_way(self) -> None:
        """Idle priority for the calling thread and for those that it starts; it cannot be taken back."""
        if self.is_crowded() or not _run_when_idle():
            _lower_priority()

    def _count(self, more: int) -> None:
        with self._lock:
            self._running += more
            if not self._running:
                self._over.set()
                self.ends()
            elif self._over.is_set():
                self._over.clear()
                self.begins()


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
