"""Subscription: calls one callback with items as they happen, in order, on its own thread.

The publishing thread never blocks: beyond `waiting_max` pending items, new ones are dropped and counted. A
callback that raises is logged and counted, and still gets the following items.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

WAITING_MAX = 1024
Item = TypeVar("Item")
_log = logging.getLogger("stretto.telemetry")


class Subscription(Generic[Item]):
    """Call it to unsubscribe. `dropped` and `failed` count items missed and callbacks that raised."""

    def __init__(
        self,
        callback: Callable[[Item], object],
        *,
        waiting_max: int = WAITING_MAX,
        on_close: Callable[[Subscription[Item]], None] = lambda _: None,
    ) -> None:
        self.dropped = 0
        self.failed = 0
        self._callback = callback
        self._on_close = on_close
        self._waiting: queue.Queue[Item | None] = queue.Queue(waiting_max + 1)  # room for the end marker
        self._waiting_max = waiting_max
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="stretto-subscriber", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Called from one thread; never blocks."""
        if self._closed:
            return
        if self._waiting.qsize() >= self._waiting_max:
            self.dropped += 1
        else:
            self._waiting.put_nowait(item)

    def __call__(self) -> None:
        """Unsubscribe: no further items are accepted; pending ones are delivered."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._waiting.put_nowait(None)

    def close(self, timeout_s: float = 5.0) -> None:
        """Unsubscribe, and wait until pending items are delivered."""
        self()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._callback(item)
            except Exception as error:
                self.failed += 1
                if self.failed == 1:
                    _log.error("a telemetry callback raised; later failures are only counted", exc_info=error)
