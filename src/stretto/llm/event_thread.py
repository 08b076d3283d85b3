"""An event loop on a thread of its own, for programs that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

JOIN_S = 10.0
T = TypeVar("T")


class EventThread:
    """`at_end` runs on the thread when the loop has stopped.

    The loop is asyncio's, not uvloop's: a handler for SIGCHLD belongs to the program, and one frame for each
    tick is little work. The thread lives as long as its processes, because the kernel ends a worker when the
    thread that started it exits.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.at_end: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the loop, and block until it is done. Interrupted, it goes on."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def join(self) -> None:
        """Wait until the loop has stopped."""
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.at_end()
            self.loop.close()
