"""How many requests run with each key: counted in this process, or across all API processes.

Shared counts are in memory that the processes inherit: one row per key, one column per process. A process
writes its own column only; a lock on a file, which the kernel releases when its holder dies, makes checking
and counting one step. The parent clears the column of a process that died.
"""

from __future__ import annotations

import fcntl
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

ITEM_BYTES = 4


class KeyCounts(Protocol):
    async def begin(self, name: str, most: int) -> int | None:
        """Count one more request with this key, unless `most` are running. Returns its number for `end`."""
        ...

    def end(self, name: str, number: int) -> None: ...


class LocalKeyCounts:
    """For one API process."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    async def begin(self, name: str, most: int) -> int | None:
        if self._running[name] >= most:
            return None
        self._running[name] += 1
        return 0

    def end(self, name: str, _number: int) -> None:
        self._running[name] -= 1


class SharedKeyCounts:
    """Created before the processes are forked; each then takes its `column`."""

    def __init__(self, names: Sequence[str], *, processes: int, lock: Path) -> None:
        self._rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
        self._processes = processes
        size = max(1, len(self._rows)) * processes * ITEM_BYTES
        self._counts = memoryview(mmap.mmap(-1, size)).cast("i")
        self._lock = lock
        lock.touch(mode=0o600)

    def column(self, process: int) -> SharedColumn:
        return SharedColumn(self, process)

    def clear(self, process: int) -> None:
        """The process is gone, and its requests with it."""
        for row in range(len(self._rows)):
            self._counts[row * self._processes + process] = 0

    def change(self, name: str, process: int, by: int) -> None:
        self._counts[self._rows[name] * self._processes + process] += by

    def total(self, name: str) -> int:
        start = self._rows[name] * self._processes
        return sum(self._counts[start : start + self._processes])

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield


class SharedColumn:
    """The counts as one process uses them."""

    def __init__(self, shared: SharedKeyCounts, process: int) -> None:
        self._shared = shared
        self._process = process

    async def begin(self, name: str, most: int) -> int | None:
        with self._shared.locked():
            if self._shared.total(name) >= most:
                return None
            self._shared.change(name, self._process, 1)
            return 0

    def end(self, name: str, _number: int) -> None:
        self._shared.change(name, self._process, -1)
