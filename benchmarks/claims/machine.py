"""Claims about the machine: a busy process beside the server, fewer processors, a CPU quota.

Both servers choose their threads themselves, except where llama-server gets the count that suits it best.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks import neighbours
from benchmarks.claims.figures import failures, ratio, report
from benchmarks.lab import OURS, THEIRS, Lab, Summary, Variant
from stretto.loadgen.bars import Bar
from stretto.loadgen.plan import Target
from stretto.loadgen.records import LoadRun
from stretto.loadgen.session import measure
from stretto.loadgen.shapes import Shape

SLOTS = 8
BESIDE = Shape(users=SLOTS, requests=2 * SLOTS)
AFTER = Shape(users=SLOTS, requests=6 * SLOTS)
LEAVES_AFTER_S = 2.0  # of the run in which the neighbour ends
WINDOW_S = 2.0  # over which a speed is taken: about what eight requests take
STEP_S = 0.25
FULL = 0.9  # of the speed before the neighbour came
CROWD = 4  # busy processes for two processors


def neighbour(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Steady beside one busy process, and how soon full speed is back when it has ended."""
    found: dict[str, list[Summary]] = {OURS: [], THEIRS: []}
    quiet: list[float] = []
    back: list[float | None] = []
    for number in range(lab.rounds):
        for name in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
            run_id = f"{lab.run_id}/neighbour/{number}/{name}"
            print(f"  neighbour: round {number + 1} of {lab.rounds}: {name}", file=sys.stderr, flush=True)
            with lab.served(Variant(peer=name), slots=SLOTS, run_id=run_id) as target:
                if name == OURS:
                    alone = measure("steady", AFTER, target, run_id=f"{run_id}/alone")
                    quiet.append(speed(alone))
                found[name].append(lab.summary(_beside(lab, target, run_id)))
                if name == OURS:
                    back.append(_until_full_speed(target, run_id, quiet[-1]))
    known = [one for one in back if one is not None]
    slowest = max(known) if len(known) == len(back) and known else None
    return {**report(found), "alone_tokens_per_s": quiet, "back_s": back}, [
        Bar(
            "neighbour: tok/s ÷ llama-server, default threads",
            ratio(found, "all", "output_tokens_per_s"),
            "≥",
            2.0,
        ),
        Bar("neighbour: s until full speed is back, slowest", slowest, "≤", 10.0),
        Bar("neighbour: failures", failures(found), "≤", 0.0),
    ]


def _beside(lab: Lab, target: Target, run_id: str) -> LoadRun:
    with neighbours.busy(1):
        return lab.watched(lambda name: measure("steady", BESIDE, target, run_id=name), f"{run_id}/beside")


def _until_full_speed(target: Target, run_id: str, full: float) -> float | None:
    with neighbours.busy(1) as running:
        ended_s = 0.0

        def leave() -> None:
            nonlocal ended_s
            neighbours.end(running[0])
            ended_s = time.monotonic()

        timer = threading.Timer(LEAVES_AFTER_S, leave)
        timer.start()
        run = measure("steady", AFTER, target, run_id=f"{run_id}/after")
        timer.join()
    return back_after(run, ended_s - run.started_s, FULL * full)


def speed(run: LoadRun) -> float:
    """Tokens per second of all requests together."""
    return sum(record.tokens for record in run.records) / run.duration_s


def back_after(run: LoadRun, ended_s: float, full: float) -> float | None:
    """Seconds from `ended_s` until the first window in which the tokens came at `full` speed."""
    times_s = sorted(itertools.chain.from_iterable(record.chunks_s for record in run.records))
    begin_s = max(0.0, ended_s)
    while begin_s + WINDOW_S <= run.duration_s:
        if sum(begin_s <= at_s < begin_s + WINDOW_S for at_s in times_s) >= full * WINDOW_S:
            return begin_s - max(0.0, ended_s)
        begin_s += STEP_S
    return None


# ── fewer processors, a quota, more work than processors ────────────────────────────────────────


def limits(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Half a processor by quota, one by affinity, and four busy processes: against the best thread count."""
    made: dict[str, Any] = {}
    bars: list[Bar] = []
    for name in ("half a core", "one core", "oversubscribed"):
        with ExitStack() as stack:
            before: Sequence[str] | None = ()
            if name == "half a core":
                before = stack.enter_context(neighbours.quota(0.5))
            elif name == "one core":
                before = neighbours.pinned(1)
            else:
                stack.enter_context(neighbours.busy(CROWD))
            found = _limited(lab, name, before) if before is not None else {}
        made[name] = {"tokens_per_s": found}
        bars += [Bar(f"limits, {name}: tok/s ÷ llama-server's best", _against_best(found), "≥", 0.95)]
    return made, bars


def _limited(lab: Lab, name: str, before: Sequence[str]) -> dict[str, list[float]]:
    variants = {
        OURS: Variant(peer=OURS, before=before),
        **{f"{THEIRS} -t {n}": Variant(peer=THEIRS, threads=n, before=before) for n in (1, 2)},
    }
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(lab.rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            print(f"  {name}: round {number + 1} of {lab.rounds}: {variant}", file=sys.stderr, flush=True)
            run_id = f"{lab.run_id}/{name}/{number}/{variant}"
            run = lab.once(variants[variant], "steady", BESIDE, slots=SLOTS, run_id=run_id)
            found[variant].append(speed(run))
    return found


def _against_best(found: dict[str, list[float]]) -> float | None:
    """Ours ÷ the faster of the others, medians over the rounds."""
    if not found:
        return None
    medians = {name: statistics.median(values) for name, values in found.items()}
    return medians.pop(OURS) / max(medians.values())
