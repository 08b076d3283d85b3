"""Shows where ticks spend their time on the GPU: kernels by kind, gaps between them, and the host.

    PYTHONPATH=src python benchmarks/gpu/ticks.py --model qwen3-8b [--json FILE] [--check] [--at 2,150]

The load of throughput.py, twice: the first pass compiles and captures, in the second a few ticks from each of
`--at` on are profiled. A tick's gap is the time from its first kernel to its last in which no kernel runs.
`--check` fails if decode ticks have gaps of more than a tenth of their time.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from offline import OfflineLoop, find_shape, finish, parser, torch_options
from throughput import make_requests

from stretto.backends.torch.loading import open_model

WINDOW_TICKS = 6
GAP_SHARE_MAX = 0.1
KINDS = {  # the first that a kernel's name contains
    "_decode_inputs": "inputs",
    "_decode": "attention",
    "_prefill": "attention",
    "_rotary": "attention",
    "_gate_up": "experts",
    "_down": "experts",
    "_route": "router",
    "_rms": "norm",
    "_silu": "activation",
    "_draw": "sampling",
    "_winner": "sampling",
    "_edit": "sampling",
    "_bias": "sampling",
    "_skinny": "product",
    "_whole": "product",
    "_long": "product",
    "_scaled": "product",
    "gemm": "product",
    "cutlass": "product",
    "nvjet": "product",
    "splitK": "product",
    "Memcpy": "copy",
    "Memset": "copy",
}


def kind_of(name: str) -> str:
    return next((kind for part, kind in KINDS.items() if part in name), "other")


class Windows:
    """torch.profiler over several windows of ticks of one run."""

    def __init__(self, loop: OfflineLoop, firsts: Iterable[int]) -> None:
        self._loop = loop
        self._firsts = sorted(firsts)
        self._profiler: Any = None
        self._until = 0
        self._began = 0.0
        self.found: dict[int, dict[str, Any]] = {}
        loop.on_tick = self._tick

    def _tick(self, ticks: int) -> None:
        if self._profiler is not None and ticks >= self._until:
            torch.cuda.synchronize()
            wall = time.perf_counter() - self._began
            self._profiler.stop()
            first = self._until - WINDOW_TICKS
            self.found[first] = summary(self._profiler.events(), wall)
            self._profiler = None
        elif self._profiler is None and self._firsts and ticks >= self._firsts[0]:
            self._firsts.pop(0)
            torch.cuda.synchronize()
            self._until = ticks + WINDOW_TICKS
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
            self._began = time.perf_counter()


def summary(events: Iterable[Any], wall: float) -> dict[str, Any]:
    """Milliseconds a tick by kind, and the kernels that take most."""
    kernels = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    busy = end = gap = 0.0
    for start, stop, name in kernels:
        if end and start > end:
            gap += min(start - end, 200.0)  # more is the profiler's or the host's pause
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
        kinds[kind_of(name)] += stop - start
        names[name][0] += stop - start
        names[name][1] += 1
    per_tick = 1e3 * WINDOW_TICKS
    top = sorted(names.items(), key=lambda item: -item[1][0])[:24]
    return {
        "wall_ms": round(wall * 1e3 / WINDOW_TICKS, 4),
        "busy_ms": round(busy / per_tick, 4),
        "gap_ms": round(gap / per_tick, 4),
        "kernels": round(len(kernels) / WINDOW_TICKS, 1),
        "kinds_ms": {
            kind: round(us / per_tick, 4) for kind, us in sorted(kinds.items(), key=lambda i: -i[1])
        },
        "top": [
            {"name": name[:90], "ms": round(us / per_tick, 4), "calls": round(count / WINDOW_TICKS, 1)}
            for name, (us, count) in top
        ],
    }


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--at", default="2,150,500,800")
    made.add_argument("--requests", type=int, default=256)
    options = made.parse_args()
    opened = open_model(
        find_shape(options.model),
        torch_options(
            options,
            slots=256,
            window=2112,
            rows_max=16_384,
        ),
    )
    loop = OfflineLoop(opened.backend, cache="prefix")
    shared = {"low": 100, "high": 1024, "vocab": opened.shape.vocab, "temperature": options.temperature}
    loop.run(make_requests(options.requests, shift=20_000, **shared))
    windows = Windows(loop, [int(text) for text in options.at.split(",")])
    run = loop.run(make_requests(options.requests, shift=40_000, **shared))
    decode = [one for first, one in windows.found.items() if first > 20]
    worst = max((one["gap_ms"] / max(one["wall_ms"], 1e-9) for one in decode), default=0.0)
    return finish(
        options,
        {
            "what": "where ticks spend their time",
            "model": options.model,
            "host": run.host.table(),
            "windows": windows.found,
            "bars": {"gap_share_to_spare": (round(GAP_SHARE_MAX - worst, 4), 0.0)},
        },
    )


if __name__ == "__main__":
    sys.exit(main())
