"""Point 2: what 7 running streams notice of a picture that arrives, and how soon it is answered.

With the default model and random projectors: beside a model of 6 M parameters, whose ticks take 4 ms, gaps
would measure the clients. Of two towers: one of the size of SigLIP base, as models of this size have, and a
small one, whose pictures wait for the language model more than for their encoder; `--quick` takes the first.

Each picture has streams of its own. They are compared with themselves: as long as the picture took to its
first token, right before it was sent. The gap in which it was sent counts as one with the picture.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from typing import Any

from benchmarks.lab import OURS, THEIRS
from benchmarks.pictures import client, random_projector
from benchmarks.pictures.client import Streams
from benchmarks.pictures.random_projector import SIGLIP, SMALL, Tower
from benchmarks.pictures.servers import BOTH, Bench
from stretto.loadgen.bars import Bar
from stretto.loadgen.plan import Target
from stretto.model_files import bundled
from stretto.settings.places import cache_home

ARRIVALS, ARRIVALS_QUICK = 5, 3
ROUNDS = 2
GAP_MAX, GAP_AGAINST_MAX, FIRST_MAX = 1.5, 0.25, 1.3
MODEL_WIDTH = 576  # of SmolLM2-135M
TOWERS = {"SigLIP base": SIGLIP, "small tower": SMALL}
_BEFORE_S = {SIGLIP: 7.0, SMALL: 2.0}  # that streams run before a picture arrives
Found = dict[str, list[float]]


async def arrival(target: Target, number: int, before_s: float) -> dict[str, float]:
    """Longest gaps of the streams before and after a picture arrives, and its first token."""
    asked = client.described(number)
    async with Streams(target, 7) as streams:
        await asyncio.sleep(before_s)
        said = await client.ask(target, asked.messages, max_tokens=8, ignore_eos=True)
    sent_s, first_s = said.record.sent_s, said.record.chunks_s[0]
    since_s = sent_s - min(before_s, said.first_token_s)
    return {
        "gap_without_s": streams.longest_gap_s(since_s, sent_s, within=True),
        "gap_with_s": streams.longest_gap_s(sent_s, first_s),
        "first_token_s": said.first_token_s,
        "median_gap_s": streams.median_gap_s(),
    }


async def arrivals(target: Target, numbers: range, before_s: float) -> Found:
    found: Found = {}
    for number in numbers:
        for key, value in (await arrival(target, number, before_s)).items():
            found.setdefault(key, []).append(value)
    return found


def beside(bench: Bench, tower: Tower) -> dict[str, Found]:
    """What both servers do with pictures of this tower."""
    count = ARRIVALS_QUICK if bench.quick else ARRIVALS
    model = bundled.ensure_default(cache_home())
    bench = replace(bench, model=model, projector=random_projector.make(tower, MODEL_WIDTH))
    found: dict[str, Found] = {name: {} for name in BOTH}
    for turn in range(1 if bench.quick else ROUNDS):
        numbers = range(1 + turn * count, 1 + (turn + 1) * count)
        for name in BOTH if turn % 2 == 0 else reversed(BOTH):
            seen = bench.run(name, lambda target, some=numbers: arrivals(target, some, _BEFORE_S[tower]))  # type: ignore[misc]
            for key, values in seen.items():
                found[name].setdefault(key, []).extend(values)
    return found


def bars_of(name: str, ours: dict[str, float], theirs: dict[str, float]) -> list[Bar]:
    gap_s = ours["gap_with_s"]
    return [
        Bar(f"stall, {name}: longest gap with ÷ without", gap_s / ours["gap_without_s"], "≤", GAP_MAX),
        Bar(f"stall, {name}: longest gap ÷ llama-server", gap_s / theirs["gap_with_s"], "≤", GAP_AGAINST_MAX),
        Bar(
            f"stall, {name}: first token of the picture ÷ llama-server",
            ours["first_token_s"] / theirs["first_token_s"],
            "≤",
            FIRST_MAX,
        ),
    ]


def measure(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """7 streams and a picture of 256 rows: the longest gap, and the picture's first token."""
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for name, tower in list(TOWERS.items())[: 1 if bench.quick else None]:
        found = beside(bench, tower)
        middle = {
            server: {key: statistics.median(all_) for key, all_ in own.items()}
            for server, own in found.items()
        }
        figures[name] = {"medians": middle, "all": found}
        bars += bars_of(name, middle[OURS], middle[THEIRS])
    return figures, bars
