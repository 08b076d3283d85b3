# ruff: noqa: N803 - constants of a kernel
"""Times kernels: replays a CUDA graph of many calls over rotating inputs, measured by device events.

A graph excludes the host's launch cost, as in decoding. The sets of inputs together exceed the L2 cache
several times, so that every call reads device memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

L2_BYTES = 60e6
ROTATION_BYTES = 5 * L2_BYTES


def rotations(bytes_per_call: float, most: int = 64) -> int:
    """The number of input sets needed."""
    return max(2, min(most, int(ROTATION_BYTES // max(bytes_per_call, 1)) + 1))


def seconds(calls: Sequence[Callable[[], object]], *, repeats: int = 7, calls_min: int = 20) -> float:
    """The median time of one call, cycling through the calls."""
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


@triton.jit
def _copy(source, target, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * (BLOCK * PARTS)
    for part in tl.static_range(PARTS):
        at = start + part * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at))


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, counting reads and writes.

    The best of the driver's copy, torch's elementwise kernel and plain Triton kernels, at 2 and 4 GiB: the
    driver's own copy reaches only two thirds of the kernels' bandwidth.
    """
    best = 0.0
    for words in (2**29, 2**30):
        source = torch.randn(words, device="cuda")
        target = torch.empty_like(source)
        calls: list[Callable[[], object]] = [
            lambda s=source, t=target: t.copy_(s),
            lambda s=source, t=target: torch.mul(s, 1.0, out=t),
        ]
        for block, parts, warps in ((2048, 1, 4), (2048, 4, 4), (4096, 2, 8), (8192, 4, 8)):
            calls.append(
                lambda s=source, t=target, b=block, p=parts, w=warps: _copy[(s.numel() // (b * p),)](
                    s, t, BLOCK=b, PARTS=p, num_warps=w
                )
            )
        best = max(best, *(2 * source.nbytes / seconds([call], repeats=9, calls_min=4) for call in calls))
    return best
