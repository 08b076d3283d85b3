"""CUDA graphs of the decode pass: one of the layers per row bucket, and one of head and sampler per mode.

A pass replays both. Capturing the layers takes tens of milliseconds and does not depend on the mode, so there
is one for all modes. All share one memory pool, because they never run at the same time, and all are captured
before a model is ready (see `warm_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from stretto.backends.torch.ops import SamplingMode


class GraphKey(NamedTuple):
    """Without a mode: the layers."""

    rows: int
    adapted: bool
    mode: SamplingMode | None = None


STEPS = ((8, 2), (32, 8), (128, 16), (512, 32), (1 << 20, 128))  # (rows up to, step)


def buckets_up_to(rows: int) -> tuple[int, ...]:
    """1, 2, 4, 6, 8, 16, 24, 32, 48, … and finally exactly `rows`."""
    buckets = [1]
    for limit, step in STEPS:
        while buckets[-1] < min(limit, rows):
            buckets.append((buckets[-1] // step + 1) * step)
    return (*[b for b in buckets if b < rows], rows)


class Recorded(Protocol):
    """Work that is captured once and replayed. `capture` calls `run` at least once."""

    def __contains__(self, key: GraphKey) -> bool: ...
    def capture(self, key: GraphKey, run: Callable[[], object]) -> None: ...
    def replay(self, key: GraphKey) -> Any:
        """What `run` returned, in static memory."""
        ...


class Graphs:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._graphs: dict[GraphKey, tuple[Any, object]] = {}

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._graphs

    def capture(self, key: GraphKey, run: Callable[[], object]) -> None:
        """Calls `run` twice: once to compile and allocate, once to capture."""
        run()
        torch.cuda.synchronize(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = run()
        self._graphs[key] = (graph, result)

    def replay(self, key: GraphKey) -> Any:
        graph, result = self._graphs[key]
        graph.replay()
        return result
