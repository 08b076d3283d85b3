"""How much processor time this process got, waited for and left unused, as Linux reports it.

Reads `/proc/self/task/*/schedstat` (time on a processor and time runnable but not running, per thread) and
`/proc/stat` (idle time of the processors that the affinity mask allows). Time of processes with a positive
nice value counts as idle, unless this process has one too: they give way. A reading takes about 20 µs: files
stay open, threads are listed twice a second. `open_pressure` answers None where none of it is reported.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LIST_EVERY_S = 0.5
COMPUTES_SHARE = 0.2  # a thread that ran for this share of the passes is one that computes them
BUSY_SHARE = 0.6  # likewise, but surely: it also spins while others wait
STAT_BYTES_MAX = 1 << 16
NICE_FIELD, IDLE_FIELDS = 2, (4, 5)  # in a line of /proc/stat; waiting for a disk is idle, too


@dataclass(frozen=True, slots=True)
class Pressure:
    """What happened between two readings. Waits are those of the threads that compute."""

    wall_s: float
    waited_s: float  # runnable but not running, all computing threads together
    free_cores: float  # mean number of allowed processors that this process got or could have had
    busy: tuple[int, ...] = ()  # threads that ran during most of the passes


class Pressures(Protocol):
    def since(self, *, computing_s: float) -> Pressure:
        """What changed since the last call. `computing_s`: how much of that time was spent in passes."""
        ...

    def close(self) -> None: ...


class PressureReader:
    """One reader per thread that asks: `since` measures from its own last call."""

    def __init__(
        self,
        *,
        cpus: frozenset[int],
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.perf_counter,
        ticks_per_s: int = 0,
        nice: int = 0,
    ) -> None:
        """`nice`: the nice value of this process."""
        self._cpus = cpus
        self._unused = IDLE_FIELDS if nice > 0 else (NICE_FIELD, *IDLE_FIELDS)
        self._tasks = proc / "self" / "task"
        self._clock = clock
        self._tick_s = 1.0 / (ticks_per_s or os.sysconf("SC_CLK_TCK"))
        self._files: dict[str, int] = {}
        self._stat = os.open(proc / "stat", os.O_RDONLY)
        self._listed_s = float("-inf")
        self._last_s = clock()
        self._threads: dict[str, tuple[int, int]] = {}
        self._idle_s = 0.0
        try:
            self._threads = self._read_threads(self._last_s)
            self._idle_s = self._read_idle()
            if not self._threads:
                raise OSError("no thread reports its waiting time")
        except BaseException:
            self.close()
            raise

    def since(self, *, computing_s: float) -> Pressure:
        now = self._clock()
        threads, idle_s = self._read_threads(now), self._read_idle()
        wall_s = max(now - self._last_s, 1e-6)
        ran_ns = waited_ns = 0
        busy: list[int] = []
        for name, (ran, waited) in threads.items():
            before_ran, before_waited = self._threads.get(name, (ran, waited))
            ran_ns += ran - before_ran
            if ran - before_ran + waited - before_waited >= COMPUTES_SHARE * computing_s * 1e9:
                waited_ns += waited - before_waited
            if ran - before_ran >= BUSY_SHARE * computing_s * 1e9:
                busy.append(int(name))
        free_s = ran_ns / 1e9 + max(0.0, idle_s - self._idle_s)
        free_cores = min(float(len(self._cpus)), free_s / wall_s)
        found = Pressure(wall_s=wall_s, waited_s=waited_ns / 1e9, free_cores=free_cores, busy=tuple(busy))
        self._last_s, self._threads, self._idle_s = now, threads, idle_s
        return found

    def close(self) -> None:
        for file in (*self._files.values(), self._stat):
            with contextlib.suppress(OSError):
                os.close(file)
        self._files = {}

    def _read_threads(self, now: float) -> dict[str, tuple[int, int]]:
        if now - self._listed_s >= LIST_EVERY_S:
            self._list(now)
        found = {}
        for name, file in list(self._files.items()):
            try:
                ran, waited = os.pread(file, 96, 0).split()[:2]
                found[name] = (int(ran), int(waited))
            except (OSError, ValueError):  # the thread ended
                os.close(self._files.pop(name))
        return found

    def _list(self, now: float) -> None:
        self._listed_s = now
        for name in os.listdir(self._tasks):
            if name not in self._files:
                with contextlib.suppress(OSError):
                    self._files[name] = os.open(self._tasks / name / "schedstat", os.O_RDONLY)

    def _read_idle(self) -> float:
        """Seconds that the allowed processors were idle or computed for processes that give way."""
        ticks = 0
        for line in os.pread(self._stat, STAT_BYTES_MAX, 0).split(b"\n"):
            if line.startswith(b"cpu") and line[3:4].isdigit():
                fields = line.split()
                if int(fields[0][3:]) in self._cpus:
                    ticks += sum(int(fields[at]) for at in self._unused)
        return ticks * self._tick_s


def open_pressure() -> PressureReader | None:
    """A reader for the processors that this process may use; None where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        return PressureReader(cpus=frozenset(os.sched_getaffinity(0)), nice=nice)
    except (OSError, ValueError):
        return None
