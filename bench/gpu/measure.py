"""How kernels are timed: replays of a CUDA graph of many calls over rotating inputs, by device events.

A graph leaves out the host's launch cost, as decoding does. Inputs rotate among sets that together exceed the
L2 cache several times, so that every call reads device memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

L2_BYTES = 60e6
ROTATION_BYTES = 5 * L2_BYTES


def rotations(bytes_per_call: float, most: int = 64) -> int:
    """How many sets of inputs are needed."""
    return max(2, min(most, int(ROTATION_BYTES // max(bytes_per_call, 1)) + 1))


def seconds(calls: Sequence[Callable[[], object]], *, repeats: int = 7, calls_min: int = 20) -> float:
    """The median time of one call, the calls taken in turn."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    rounds = -(-calls_min // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    samples = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1e3 / (rounds * len(calls)))
    return statistics.median(samples)


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, counting those read and those written."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds([lambda: target.copy_(source)], calls_min=5)
