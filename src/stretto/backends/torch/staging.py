"""Asynchronous transfers between host and device, with pinned buffers and events.

A buffer is reused only after enough launches that the tick which read it has been collected. On a CPU the
same calls are plain copies.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

RING = 8  # two ticks in flight, each with two or three transfers
ALIGNED = 4  # of int32: 16 bytes
Ints = NDArray[np.int32]


class Staging:
    """Packed int32 columns, sent in one transfer. `ring`: transfers after which a buffer is reused."""

    def __init__(self, device: torch.device, capacity: int, *, ring: int = RING) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._buffers = [self._make(capacity) for _ in range(ring)]
        self._next = 0

    def _make(self, capacity: int) -> torch.Tensor:
        return torch.empty(capacity, dtype=torch.int32, pin_memory=self._pinned)

    def pack(self, *columns: Ints) -> torch.Tensor:
        """The columns concatenated on the host, ready to be sent."""
        buffer = self._take(sum(len(column) for column in columns))
        if len(buffer):
            np.concatenate(columns, out=buffer.numpy())
        return buffer

    def send(self, *columns: Ints) -> list[torch.Tensor]:
        """The columns on the device, views of one tensor.

        Each starts at a multiple of 16 bytes: kernels are specialized for pointer alignment, and lengths that
        change between ticks would otherwise trigger recompilation.
        """
        starts = np.cumsum([0, *(-(-len(column) // ALIGNED) * ALIGNED for column in columns)]).tolist()
        buffer = self._take(starts[-1])
        host = buffer.numpy()
        for start, column in zip(starts, columns, strict=False):
            host[start : start + len(column)] = column
        packed = buffer.to(self._device, non_blocking=True)
        if not self._pinned:
            packed = packed.clone()  # on a CPU `to` returns the buffer itself
        return [packed[start : start + len(column)] for start, column in zip(starts, columns, strict=False)]

    def _take(self, size: int) -> torch.Tensor:
        self._next = (self._next + 1) % len(self._buffers)
        if self._buffers[self._next].numel() < size:
            self._buffers[self._next] = self._make(2 * size)
        return self._buffers[self._next][:size]


class Stopwatch:
    """Times a pass with events on a GPU, with the clock on a CPU. `wait` returns when the pass has ended.

    `blocking`: the thread sleeps meanwhile, and wakes some tens of microseconds late. Otherwise it polls.
    """

    def __init__(self, device: torch.device, *, blocking: bool = False) -> None:
        self._cuda = device.type == "cuda"
        self.blocking = blocking
        make: Any = torch.cuda.Event
        self._begin: Any = make(enable_timing=True) if self._cuda else None
        self._end: Any = make(enable_timing=True, blocking=blocking) if self._cuda else None
        self._started = self._stopped = 0.0

    def start(self) -> None:
        if self._cuda:
            self._begin.record()
        self._started = time.perf_counter()

    def stop(self) -> None:
        if self._cuda:
            self._end.record()
        self._stopped = time.perf_counter()

    def wait(self) -> float:
        """Waits until everything between start and stop is done; returns the seconds."""
        if not self._cuda:
            return self._stopped - self._started
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


class Stopwatches:
    """Those of passes that were read are used again: making events takes time in each tick."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[bool, list[Stopwatch]] = {False: [], True: []}

    def take(self, *, blocking: bool) -> Stopwatch:
        free = self._free[blocking]
        return free.pop() if free else Stopwatch(self._device, blocking=blocking)

    def wait(self, watch: Stopwatch) -> float:
        """As the stopwatch's own; it is free afterwards."""
        seconds = watch.wait()
        self._free[watch.blocking].append(watch)
        return seconds


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Starts the copy; it is complete after waiting for a stopwatch that is stopped later."""
    if tensor.device.type != "cuda":
        return tensor
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return target.copy_(tensor, non_blocking=True)
