"""Point 1: right answers about held-out pictures, and the same text whatever happens around a request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.lab import OURS
from benchmarks.pictures import client
from benchmarks.pictures.client import Asked, Said, Streams, user
from benchmarks.pictures.servers import Bench
from stretto.loadgen.bars import Bar
from stretto.loadgen.plan import Target

PICTURES, PICTURES_QUICK = 200, 32
RIGHT_MIN = 0.95
ROWS = 256  # of a picture
_CHUNK = "48"  # prompt tokens a tick, so that a picture takes six
_PREEMPTED_MIN = 0.5  # preemptions a picture


async def one_by_one(target: Target, asked: Sequence[Asked], **fields: Any) -> list[Said]:
    return [await client.ask(target, each.messages, **fields) for each in asked]


async def among_streams(target: Target, asked: Sequence[Asked]) -> list[Said]:
    async with Streams(target, 7):
        return await one_by_one(target, asked)


async def preempted(target: Target, asked: Sequence[Asked]) -> list[Said]:
    """Background requests on one slot that urgent ones take again and again."""
    over = asyncio.Event()

    async def urgent() -> None:
        number = 0
        while not over.is_set():
            number += 1
            text = f"Count from {number % 50} to {number % 50 + 1}."
            await client.ask(target, [user(text)], max_tokens=3, priority="urgent")

    traffic = asyncio.create_task(urgent())
    try:
        return await one_by_one(target, asked, priority="background")
    finally:
        over.set()
        await traffic


def measure(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Right answers alone, cached, beside 7 streams, in chunks, and preempted; always the same text."""
    asked = client.held_out(PICTURES_QUICK if bench.quick else PICTURES)

    async def cold_and_cached(target: Target) -> tuple[list[Said], list[Said]]:
        return await one_by_one(target, asked), await one_by_one(target, asked)

    async def counted(target: Target) -> tuple[list[Said], float]:
        said = await preempted(target, asked)
        return said, client.metric(target, "stretto_preemptions_total")

    alone, cached = bench.run(OURS, cold_and_cached)
    beside = bench.run(OURS, lambda target: among_streams(target, asked))
    chunked = bench.run(OURS, lambda target: one_by_one(target, asked), "--prefill-chunk", _CHUNK)
    resumed, preemptions = bench.run(OURS, counted, "--prefill-chunk", _CHUNK, slots=1)
    ways = {"alone": alone, "cached": cached, "beside": beside, "chunked": chunked, "preempted": resumed}
    figures: dict[str, Any] = {"pictures": len(asked), "preemptions": preemptions}
    bars = []
    for way, said in ways.items():
        found = judged(asked, said, alone)
        figures[way] = found
        bars += [
            Bar(f"answers, {way}: right", found["right"], "≥", RIGHT_MIN),
            Bar(f"answers, {way}: texts that differ from alone", float(len(found["differ"])), "≤", 0.0),
        ]
    bars += [
        Bar("answers, alone: cached rows of pictures", float(most_cached(alone)), "≤", ROWS - 1),
        Bar("answers, cached: least cached tokens", float(least_cached(cached)), "≥", ROWS),
        Bar("answers, preempted: preemptions a picture", preemptions / len(asked), "≥", _PREEMPTED_MIN),
    ]
    return figures, bars


def most_cached(said: Sequence[Said]) -> int:
    return max(each.record.cached_tokens for each in said)


def least_cached(said: Sequence[Said]) -> int:
    return min(each.record.cached_tokens for each in said)


def judged(asked: Sequence[Asked], said: Sequence[Said], alone: Sequence[Said]) -> dict[str, Any]:
    """The share of right answers, which are wrong, and which differ from those that were alone."""
    pairs = list(zip(asked, said, strict=True))
    wrong = {
        at: [each.answer, given.text] for at, (each, given) in enumerate(pairs) if given.text != each.answer
    }
    differ = [at for at, (one, other) in enumerate(zip(said, alone, strict=True)) if one.text != other.text]
    return {
        "right": 1 - len(wrong) / len(pairs),
        "wrong": wrong,
        "wrong_by_topic": dict(Counter(asked[at].topic for at in wrong)),
        "differ": differ,
    }
