"""Runs what computes for a moment on a thread that ends, so that OpenMP's team for it ends, too.

OpenMP keeps a team for each thread that ever computed. Once there are more threads in teams than processors,
its barriers sleep instead of spinning: a thread that had only loaded or verified something cost every pass a
fifth of its speed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def on_temporary_thread(
    work: Callable[[], T], *, interrupt: Callable[[BaseException], None] | None = None
) -> T:
    """`interrupt` is told what interrupted the wait (Ctrl-C); the work is awaited all the same."""
    with ThreadPoolExecutor(1, thread_name_prefix="temporary") as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except BaseException as error:
            if interrupt is not None and not future.done():
                interrupt(error)
            raise
