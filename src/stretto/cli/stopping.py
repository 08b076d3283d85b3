"""SIGTERM and SIGINT from the first moment of `stretto serve`: the process ends in order, and with 0.

A server that runs handles both itself (see `server.run`): it drains. Before and after that nothing is at
work, so leaving is all there is to do. Imports little, as it comes before everything else.
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
    """Without `restore` the handlers stay up to the end of the process."""
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
