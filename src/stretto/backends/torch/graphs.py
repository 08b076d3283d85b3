"""CUDA graphs of the decode pass: one of the layers per row bucket, and one of head and sampler per mode.

A decode pass replays both; of mixed passes only the layers are captured (see `mixed`). Capturing the layers
takes tens of milliseconds and does not depend on the mode: there is one for all modes. All share one memory
pool, because they never run at the same time, and all are captured before a model is ready (see `warm_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.ops import SamplingMode


class GraphKey(NamedTuple):
    """Without a mode: the layers."""

    rows: int
    adapted: bool
    mode: SamplingMode | None = None
    drafts: bool = False  # several rows of a sequence
    mixed: bool = False  # prompt chunks, too

    @property
    def layers(self) -> GraphKey:
        return self._replace(mode=None)


DRAFT_BUCKETS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
DRAFT_ROWS = 256  # of all slots, unless these are more than half as many
LAYER_FLOP_MAX = 2e12  # of a mixed pass: three milliseconds of computing
SMALLEST = 64  # mixed buckets are multiples of it
FINE_FROM = 1024  # rows: eight buckets to the next power of two, below two
EAGER_EVERY = ((8192, 64), (1 << 30, 256))  # (rows up to, step)
STEPS = ((8, 2), (32, 8), (128, 16), (512, 32), (1 << 20, 128))  # (rows up to, step)


def buckets_up_to(rows: int) -> tuple[int, ...]:
    """1, 2, 4, 6, 8, 16, 24, 32, 48, … and finally exactly `rows`."""
    buckets = [1]
    for limit, step in STEPS:
        while buckets[-1] < min(limit, rows):
            buckets.append((buckets[-1] // step + 1) * step)
    return (*[b for b in buckets if b < rows], rows)


def draft_rows(slots: int, drafts_max: int) -> int:
    """The most rows of a decode pass with drafts; 0 without drafts."""
    return min(slots * (1 + drafts_max), max(DRAFT_ROWS, 2 * slots)) if drafts_max else 0


def draft_buckets_up_to(rows: int) -> tuple[int, ...]:
    """Coarser, because a pass with drafts has few rows or can do with fewer drafts. Empty for 0 rows."""
    return (*(b for b in DRAFT_BUCKETS if b < rows), rows) if rows else ()


def mixed_buckets(shape: TransformerShape, rows_max: int) -> tuple[int, ...]:
    """64, 128, 192, 256, 384, 512, 768, 1024, 1152, … as long as the host's time to launch matters."""
    limit = min(rows_max, int(LAYER_FLOP_MAX / (2 * layer_weights(shape))))
    found, octave = [SMALLEST, 2 * SMALLEST, 3 * SMALLEST], 4 * SMALLEST
    while octave <= limit:
        parts = 8 if octave >= FINE_FROM else 2
        found += [octave + octave * part // parts for part in range(parts)]
        octave *= 2
    return tuple(rows for rows in found if rows <= limit)


def eager_rows(above: int, rows_max: int) -> tuple[int, ...]:
    """Row counts of passes without a graph, ascending, the last one `rows_max`: others are padded."""
    found, rows = list[int](), above
    while rows < rows_max:
        rows = min(rows + next(step for limit, step in EAGER_EVERY if rows < limit), rows_max)
        found.append(rows)
    return tuple(found)


def layer_weights(shape: TransformerShape) -> int:
    """Weights of a layer that a row is multiplied with."""
    inner = shape.inner if shape.experts is None else shape.experts.inner * shape.experts.per_token
    return shape.hidden * (2 * (shape.heads + shape.kv_heads) * shape.head_dim + 3 * inner)


class Recorded(Protocol):
    """Work that is captured once and replayed. `capture` calls `run` at least once.

    Before it captures it calls `prepare`, which loads all kernels of `run`; without one, `run` itself.
    """

    def __contains__(self, key: GraphKey) -> bool: ...
    def capture(
        self, key: GraphKey, run: Callable[[], object], prepare: Callable[[], object] | None = None
    ) -> None: ...
    def replay(self, key: GraphKey) -> Any:
        """What `run` returned, in static memory."""
        ...

    def result(self, key: GraphKey) -> Any:
        """That memory, without running anything."""
        ...


class Graphs:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None  # captures are not allowed on the default stream
        self._graphs: dict[GraphKey, tuple[Any, object]] = {}

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._graphs

    def capture(
        self, key: GraphKey, run: Callable[[], object], prepare: Callable[[], object] | None = None
    ) -> None:
        """Not with `torch.cuda.graph`, which gives all unused memory back to the driver first: later passes
        without a graph would allocate it again, and wait for the GPU each time.
        """
        (prepare or run)()
        torch.cuda.synchronize(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:
                graph.capture_end()
        self._graphs[key] = (graph, result)

    def replay(self, key: GraphKey) -> Any:
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def result(self, key: GraphKey) -> Any:
        return self._graphs[key][1]


def choose_graphs(graphs: bool | Recorded | None, device: torch.device, *, parallel: bool) -> Recorded | None:
    """With several ranks there are no graphs: passes run as they are sent to the others."""
    if graphs is not None and not isinstance(graphs, bool):
        return graphs
    return Graphs(device) if device.type == "cuda" and graphs is not False and not parallel else None
