"""A worker's heartbeat: a small file mapped by the worker and its supervisor, so no call is needed.

    offset  size  what
    0       8     magic "STRETTO1"
    8       4     pid of the writer
    12      4     unused
    16      8     last beat of the RPC loop, ns of the monotonic clock (shared by all processes)
    64 + 64·i     loop i, at most LOOPS_MAX:
      +0    8     state: 0 unused, 1 idle, 2 working
      +8    8     steps done
      +16   8     when it last started or finished a step, ns

An idle loop does not beat; a working loop that has not beaten for long hangs. Every field is aligned and
written atomically, so a reader never sees a torn value.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"STRETTO1"
SIZE_BYTES = 4096
LOOPS_MAX = 63
UNUSED, RESTING, WORKING = 0, 1, 2
RPC_BEAT_S = 0.25  # how often the RPC loop beats
_PID, _RPC, _LOOPS, _STRIDE = 8, 16, 64, 64
_U64 = struct.Struct("<Q")
_LOOP = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class LoopBeat:
    index: int
    working: bool
    steps: int
    beat_s: float  # the monotonic clock


@dataclass(frozen=True, slots=True)
class Heartbeat:
    pid: int
    rpc_beat_s: float
    loops: tuple[LoopBeat, ...]

    def hung(self, now_s: float, *, step_s_max: float, rpc_s_max: float) -> str:
        """What hangs, as text; empty if nothing does."""
        if self.rpc_beat_s and now_s - self.rpc_beat_s > rpc_s_max:
            return f"the worker's RPC loop has not run for {now_s - self.rpc_beat_s:.1f} s"
        for loop in self.loops:
            if loop.working and now_s - loop.beat_s > step_s_max:
                return f"loop {loop.index} has been in step {loop.steps} for {now_s - loop.beat_s:.1f} s"
        return ""


class HeartbeatWriter:
    """The worker's side. Loops beat from their own threads; each writes only its own record."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, SIZE_BYTES)
            self._map = mmap.mmap(descriptor, SIZE_BYTES)
        finally:
            os.close(descriptor)
        self._map[:] = bytes(SIZE_BYTES)
        struct.pack_into("<I", self._map, _PID, os.getpid())
        self._map[:8] = MAGIC
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def beat_rpc(self) -> None:
        _U64.pack_into(self._map, _RPC, time.monotonic_ns())

    def take(self) -> int | None:
        """A record for a new loop; None if all are taken (the loop is then not supervised)."""
        with self._lock:
            free = next((index for index in range(LOOPS_MAX) if index not in self._taken), None)
            if free is not None:
                self._taken.add(free)
            return free

    def give_back(self, index: int) -> None:
        with self._lock:
            self._taken.discard(index)
            _LOOP.pack_into(self._map, _LOOPS + _STRIDE * index, UNUSED, 0, 0)

    def beat(self, index: int, steps: int, *, working: bool) -> None:
        state = WORKING if working else RESTING
        _LOOP.pack_into(self._map, _LOOPS + _STRIDE * index, state, steps, time.monotonic_ns())


class HeartbeatReader:
    """The supervisor's side: maps the file once the worker has created it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def read(self) -> Heartbeat | None:
        """None until the first beat."""
        if self._map is None and not self._open():
            return None
        assert self._map is not None
        if self._map[:8] != MAGIC:
            return None
        (pid,) = struct.unpack_from("<I", self._map, _PID)
        (rpc_ns,) = _U64.unpack_from(self._map, _RPC)
        return Heartbeat(pid, rpc_ns / 1e9, tuple(self._loops()))

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def _loops(self) -> list[LoopBeat]:
        assert self._map is not None
        found = []
        for index in range(LOOPS_MAX):
            state, steps, beat_ns = _LOOP.unpack_from(self._map, _LOOPS + _STRIDE * index)
            if state != UNUSED:
                found.append(LoopBeat(index, state == WORKING, steps, beat_ns / 1e9))
        return found

    def _open(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size < SIZE_BYTES:
                return False
            self._map = mmap.mmap(descriptor, SIZE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return True
