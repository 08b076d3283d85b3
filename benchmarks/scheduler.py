"""Measures the time of plan + commit by the number of generating slots, with synthetic outcomes.

    python benchmarks/scheduler.py [--json FILE] [--check]

Times are CPU time of the scheduler's thread, because machines are shared.

`--check` exits 1 if 256 slots take more than 500 µs (median) or if the time grows faster than linearly from
16 to 1,024 slots. Pages of 16 tokens, so every slot reserves memory every 16 ticks; three tenants.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from array import array

from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits
from stretto.core.ops import OpResult
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Outcome, Tick

SLOTS = (16, 64, 256, 1024)
BAR_US = 500.0
IN_A_ROW = 10  # ticks of one size before switching to the next
LINEAR_SLACK = 1.25  # per-slot time at 1,024 against that at 256


def make(slots: int, layout: str) -> Scheduler:
    paged = {"share": Share.PAGES, "pages": slots * 80, "page_tokens": 16}
    layouts = {"pages": paged, "streams": {"sequences_max": slots}}
    options = {"sequences_max": slots, **layouts[layout]}
    can = Capabilities(window=1 << 20, rows_max=1 << 20, outputs_max=1 << 20, vocab=1 << 17, **options)
    limits = Limits(n_seq_max=slots, n_batch=max(2048, 2 * slots), cache="prefix")
    scheduler = Scheduler(limits, can)
    for index in range(slots):
        tokens = array(
            "i", range(index, index + 64 + index % 16)
        )  # so that page boundaries are spread over ticks
        params = SamplingParams(max_tokens=1 << 19, stop_token_ids=frozenset({0}))
        answer = scheduler.submit(Request(f"r{index}", tokens, params, tenant=f"t{index % 3}"), 0.0)
        assert answer.accepted
    return scheduler


def plan_and_commit(scheduler: Scheduler, now: float) -> tuple[float, int]:
    """One plan and commit: seconds of both together, and the decode rows."""
    started = time.thread_time()
    tick = scheduler.plan(now)
    planned = time.thread_time()
    assert isinstance(tick, Tick)
    outcome = Outcome(tick.id, pass_s=0.02, op_results=tuple(OpResult(ok=True) for _ in tick.ops))
    outcome.counts = array("i", [int(outputs > 0) for outputs in tick.outputs])
    outcome.tokens = array("i", [7] * sum(outcome.counts))
    resumed = time.thread_time()
    scheduler.commit(outcome, now)
    return planned - started + time.thread_time() - resumed, tick.decode_rows


def measure(layout: str, *, ticks: int) -> dict[int, dict[str, float]]:
    """All sizes alternately, a few ticks each, so that other load on the host affects all sizes equally."""
    schedulers = {slots: make(slots, layout) for slots in SLOTS}
    now = 0.0
    for slots, scheduler in schedulers.items():
        while plan_and_commit(scheduler, now)[1] < slots:
            now += 0.02
    gc.collect()
    times: dict[int, list[float]] = {slots: [] for slots in SLOTS}
    for _ in range(0, ticks, IN_A_ROW):
        for slots, scheduler in schedulers.items():
            for _ in range(IN_A_ROW):
                now += 0.02
                seconds, rows = plan_and_commit(scheduler, now)
                assert rows == slots
                times[slots].append(seconds * 1e6)
    return {slots: figures(slots, found) for slots, found in times.items()}


def figures(slots: int, times: list[float]) -> dict[str, float]:
    median, p95 = statistics.median(times), statistics.quantiles(times, n=20)[18]
    return {"median_us": median, "p95_us": p95, "per_slot_us": median / slots}


def judge(results: dict[str, dict[str, dict[str, float]]]) -> bool:
    ok = {"pages", "streams"} <= set(results)
    for layout, sizes in results.items():
        growth = sizes["1024"]["per_slot_us"] / sizes["256"]["per_slot_us"]
        median = sizes["256"]["median_us"]
        ok &= 0 < median <= BAR_US and growth <= LINEAR_SLACK
        print(
            f"{layout}: 256 slots {median:.0f} µs (bar {BAR_US:.0f}), per-slot growth to 1,024 ×{growth:.2f}"
        )
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if the bar is missed")
    parser.add_argument("--ticks", type=int, default=400)
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for layout in ("pages", "streams"):
        results[layout] = {}
        for slots, found in measure(layout, ticks=options.ticks).items():
            results[layout][str(slots)] = {name: round(value, 3) for name, value in found.items()}
            median, p95 = found["median_us"], found["p95_us"]
            print(f"{layout:8} {slots:5} slots: median {median:8.1f} µs  p95 {p95:8.1f} µs")
    ok = judge(results)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"bar_us": BAR_US, "held": ok, "results": results}, file, indent=1)
            file.write("\n")
    return 0 if ok or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
