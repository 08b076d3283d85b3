"""Handles SIGTERM and SIGINT from the start of `stretto serve`: the process exits cleanly with 0.

A running server handles both itself (see `server.run`): it drains. Before and after that there is no work to
finish, so the process just exits. Imports little, because it runs first.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_end_with_0(*, restore: bool) -> Iterator[None]:
    """Without `restore` the handlers stay until the process exits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in SIGNALS}
    try:
        yield
    finally:
        if restore:
            for number, handler in before.items():
                signal.signal(number, handler)


def _leave(_number: int, _frame: object) -> None:
    sys.exit(0)
