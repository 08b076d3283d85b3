"""How long plan + commit take, by slots that generate. No backend: outcomes are made up.

    python bench/scheduler.py [--json FILE] [--check]

Times are CPU time of the one thread that does the work: machines are shared, and waiting is not work.

`--check` exits 1 when 256 slots take more than 500 µs (median) or when the time grows faster than linearly
from 16 to 1,024 slots. Pages of 16 tokens, so every slot reserves memory every 16 ticks; three tenants.
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
from stretto.core.kv.ops import OpResult
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Outcome, Tick

SLOTS = (16, 64, 256, 1024)
BAR_US = 500.0
LINEAR_SLACK = 1.25  # per-slot time at 1,024 against that at 256


def make(slots: int, layout: str) -> Scheduler:
    paged = {"share": Share.PAGES, "pages": slots * 80, "page_tokens": 16}
    layouts = {"pages": paged, "streams": {"sequences_max": slots}}
    options = {"sequences_max": slots, **layouts[layout]}
    can = Capabilities(window=1 << 20, rows_max=1 << 20, outputs_max=1 << 20, vocab=1 << 17, **options)
    limits = Limits(n_seq_max=slots, n_batch=max(2048, 2 * slots), cache="prefix")
    scheduler = Scheduler(limits, can)
    for index in range(slots):
        tokens = array("i", range(index, index + 64 + index % 16))  # so that page ends are spread over ticks
        params = SamplingParams(max_tokens=1 << 19, stop_token_ids=frozenset({0}))
        answer = scheduler.submit(Request(f"r{index}", tokens, params, tenant=f"t{index % 3}"), 0.0)
        assert answer.accepted
    return scheduler


def turn(scheduler: Scheduler, now: float) -> tuple[float, int]:
    """One plan and commit: seconds of both together, and the decode rows in it."""
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


def measure(slots: int, layout: str, *, ticks: int) -> dict[str, float]:
    scheduler = make(slots, layout)
    now = 0.0
    while turn(scheduler, now)[1] < slots:
        now += 0.02
    gc.collect()
    times = []
    for _ in range(ticks):
        now += 0.02
        seconds, rows = turn(scheduler, now)
        assert rows == slots
        times.append(seconds * 1e6)
    quartiles = statistics.quantiles(times, n=20)
    return {
        "median_us": statistics.median(times),
        "p95_us": quartiles[18],
        "per_slot_us": statistics.median(times) / slots,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when the bar is missed")
    parser.add_argument("--ticks", type=int, default=400)
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for layout in ("pages", "streams"):
        results[layout] = {}
        for slots in SLOTS:
            figures = measure(slots, layout, ticks=options.ticks)
            results[layout][str(slots)] = {name: round(value, 3) for name, value in figures.items()}
            median, p95 = figures["median_us"], figures["p95_us"]
            print(f"{layout:8} {slots:5} slots: median {median:8.1f} µs  p95 {p95:8.1f} µs")
    ok = True
    for layout, figures in results.items():
        growth = figures["1024"]["per_slot_us"] / figures["256"]["per_slot_us"]
        held = figures["256"]["median_us"] <= BAR_US and growth <= LINEAR_SLACK
        ok &= held
        median = figures["256"]["median_us"]
        print(
            f"{layout}: 256 slots {median:.0f} µs (bar {BAR_US:.0f}), per-slot growth to 1,024 ×{growth:.2f}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"bar_us": BAR_US, "held": ok, "results": results}, file, indent=1)
            file.write("\n")
    return 0 if ok or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
