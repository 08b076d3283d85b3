"""Point 2: what 7 running streams notice of a picture that arrives, and how soon it is answered.

With the default model and a random projector: beside a model of 6 M parameters, whose ticks take 4 ms, gaps
would measure the clients.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from typing import Any

from benchmarks.lab import OURS, THEIRS
from benchmarks.pictures import client, random_projector
from benchmarks.pictures.client import Said, Streams
from benchmarks.pictures.servers import BOTH, Bench
from stretto.loadgen.bars import Bar
from stretto.loadgen.plan import Target
from stretto.model_files import bundled
from stretto.settings.places import cache_home

ARRIVALS, ARRIVALS_QUICK = 5, 3
ROUNDS = 2
GAP_MAX, GAP_AGAINST_MAX, FIRST_MAX = 1.5, 0.25, 1.3
MODEL_WIDTH = 576  # of SmolLM2-135M
_APART_S = 2.5
_WINDOW_S = 2.0  # before each arrival: the streams without a picture


async def arrivals(target: Target, count: int, first: int) -> dict[str, list[float]]:
    """Longest gaps of the streams before and after pictures arrive one by one, and their first tokens."""
    said: list[Said] = []
    async with Streams(target, 7) as streams:
        for number in range(first, first + count):
            await asyncio.sleep(_APART_S)
            asked = client.described(number)
            said.append(await client.ask(target, asked.messages, max_tokens=8, ignore_eos=True))
    spans = [(each.record.sent_s, each.record.chunks_s[0]) for each in said]
    return {
        "gap_without_s": [streams.longest_gap_s(sent_s - _WINDOW_S, sent_s) for sent_s, _ in spans],
        "gap_with_s": [streams.longest_gap_s(*span) for span in spans],
        "first_token_s": [each.first_token_s for each in said],
        "median_gap_s": [streams.median_gap_s()],
    }


def measure(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """7 streams and a picture of 256 rows: the longest gap, and the picture's first token."""
    count = ARRIVALS_QUICK if bench.quick else ARRIVALS
    model = bundled.ensure_default(cache_home())
    bench = replace(bench, model=model, projector=random_projector.make(MODEL_WIDTH))
    found: dict[str, dict[str, list[float]]] = {name: {} for name in BOTH}
    for turn in range(1 if bench.quick else ROUNDS):
        for name in BOTH if turn % 2 == 0 else reversed(BOTH):
            seen = bench.run(name, lambda target, at=turn: arrivals(target, count, 1 + at * count))  # type: ignore[misc]
            for key, values in seen.items():
                found[name].setdefault(key, []).extend(values)
    middle = {
        name: {key: statistics.median(all_) for key, all_ in own.items()} for name, own in found.items()
    }
    ours, theirs = middle[OURS], middle[THEIRS]
    bars = [
        Bar("stall: longest gap with ÷ without", ours["gap_with_s"] / ours["gap_without_s"], "≤", GAP_MAX),
        Bar(
            "stall: longest gap ÷ llama-server",
            ours["gap_with_s"] / theirs["gap_with_s"],
            "≤",
            GAP_AGAINST_MAX,
        ),
        Bar(
            "stall: first token of the picture ÷ llama-server",
            ours["first_token_s"] / theirs["first_token_s"],
            "≤",
            FIRST_MAX,
        ),
    ]
    return {"medians": middle, "all": found}, bars
