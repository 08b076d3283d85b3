"""Point 3: eight requests with pictures at once, all different or all the same."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from benchmarks.lab import OURS, THEIRS
from benchmarks.pictures import client
from benchmarks.pictures.servers import BOTH, Bench
from stretto.errors import BenchError
from stretto.loadgen.bars import Bar
from stretto.loadgen.plan import Target

REQUESTS = 8
BURSTS, BURSTS_QUICK = 4, 2
ROUNDS = 2
BOUNDS = {"different": 0.7, "same": 0.3}


async def burst(target: Target, numbers: list[int]) -> float:
    """Seconds from the first request to the last first token."""
    asked = [client.described(number) for number in numbers]
    said = await asyncio.gather(*(client.ask(target, each.messages) for each in asked))
    wrong = [
        (one.answer, other.text) for one, other in zip(asked, said, strict=True) if one.answer != other.text
    ]
    if len(wrong) > len(asked) // 2:
        raise BenchError("most answers of a burst are wrong", hint=str(wrong[0]))
    return max(each.record.chunks_s[0] for each in said) - min(each.record.sent_s for each in said)


async def bursts(target: Target, count: int, first: int) -> dict[str, list[float]]:
    """New pictures every time."""
    found: dict[str, list[float]] = {kind: [] for kind in BOUNDS}
    at = 1000 + first * (REQUESTS + 1)
    for _ in range(count):
        found["different"].append(await burst(target, list(range(at, at + REQUESTS))))
        found["same"].append(await burst(target, [at + REQUESTS] * REQUESTS))
        at += REQUESTS + 1
    return found


def measure(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """8 requests with pictures at once: time to the last first token."""
    count = BURSTS_QUICK if bench.quick else BURSTS
    found: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in BOUNDS} for name in BOTH}
    for turn in range(1 if bench.quick else ROUNDS):
        for name in BOTH if turn % 2 == 0 else reversed(BOTH):
            seen = bench.run(name, lambda target, at=turn: bursts(target, count, at * count))  # type: ignore[misc]
            for kind, values in seen.items():
                found[name][kind] += values
    middle = {name: {kind: statistics.median(own[kind]) for kind in own} for name, own in found.items()}
    bars = [
        Bar(
            f"8 {kind} pictures: last first token ÷ llama-server",
            middle[OURS][kind] / middle[THEIRS][kind],
            "≤",
            bound,
        )
        for kind, bound in BOUNDS.items()
    ]
    return {"medians": middle, "all": found}, bars
