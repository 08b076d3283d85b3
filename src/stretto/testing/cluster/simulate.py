"""`python -m stretto.testing.cluster.simulate WHAT`: the cluster on a virtual clock.

    laws      seeds with deaths, joins, cancels, scaling and small memories; every law after every step
    reuse     prefix tokens reused by four replicas against one of four times the size
    fairness  shares of three tenants over four replicas, one with ten times the load
    agree     real schedulers against the event model, on the same requests
    large     very many requests on 64 replicas (event model), from traces or synthetic
    plan      how many replicas a trace needs for a time to first token

A violated law ends the run with status 1 and the command that replays it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stretto.testing.cluster import studies
from stretto.testing.cluster.laws import SOMETIMES
from stretto.testing.cluster.scenarios import draw_cluster, run_scenario


class ClusterViolation(Exception):
    """A law was broken; the message is ready to print."""


def run_seed(seed: int) -> tuple[Counter[str], Counter[str]]:
    try:
        simulation = run_scenario(draw_cluster(seed))
    except Exception as error:
        trail = "".join(traceback.format_exception(error)[-6:])
        command = f"python -m stretto.testing.cluster.simulate laws --seed {seed} --seeds 1"
        raise ClusterViolation(
            f"seed {seed}: {type(error).__name__}: {error}\n{trail}\nreplay: {command}"
        ) from None
    return simulation.laws.sometimes, simulation.measures.outcomes


def laws(first: int, count: int, workers: int, *, lenient: bool) -> tuple[dict[str, Any], bool]:
    sometimes: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    seeds = range(first, first + count)
    found: Iterable[tuple[Counter[str], Counter[str]]]
    if workers == 1:
        found = map(run_seed, seeds)
    else:
        pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"))
        found = pool.map(run_seed, seeds, chunksize=4)
    for seen, outcomes in found:
        sometimes += seen
        ended += outcomes
    unseen = [what for what in SOMETIMES if not sometimes[what]]
    figures = {
        "seeds": count,
        "outcomes": dict(sorted(ended.items())),
        "sometimes": {what: sometimes[what] for what in SOMETIMES},
        "never_seen": unseen,
    }
    return figures, lenient or not unseen


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stretto.testing.cluster.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["laws", "reuse", "fairness", "agree", "large", "plan"])
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="laws: how many")
    parser.add_argument("--workers", type=int, default=1, help="laws: processes")
    parser.add_argument("--lenient", action="store_true", help="laws: coverage may be incomplete")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a trace (CSV or JSONL)")
    parser.add_argument("--requests", type=int, default=100_000, help="agree, large, plan")
    parser.add_argument("--replicas", type=int, default=64, help="large: how many")
    parser.add_argument("--rate", type=float, default=400.0, help="large, plan: requests per second")
    parser.add_argument("--ttft", type=float, default=1.0, help="plan: seconds, for 95 of 100 requests")
    parser.add_argument("--scheduler", action="store_true", help="plan: real schedulers, not the event model")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    return parser.parse_args(arguments)


def study(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    seed, traces = options.seed, tuple(options.trace)
    match options.what:
        case "laws":
            return laws(seed, options.seeds, options.workers, lenient=options.lenient)
        case "reuse":
            return studies.reuse(seed)
        case "fairness":
            return studies.fairness(seed)
        case "agree":
            return studies.agree(min(options.requests, 20_000), seed)
        case "large":
            return studies.large(
                traces, requests=options.requests, replicas=options.replicas, rate=options.rate, seed=seed
            )
        case _:
            return studies.plan(
                traces,
                requests=options.requests,
                rate=options.rate,
                ttft_s=options.ttft,
                events=not options.scheduler,
                seed=seed,
            )


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    started = time.monotonic()
    try:
        figures, held = study(options)
    except ClusterViolation as violation:
        print(f"VIOLATION {violation}")
        return 1
    figures["wall_s"] = round(time.monotonic() - started, 1)
    figures["held"] = held
    text = json.dumps(figures, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    must = options.check or options.what == "laws"
    return int(must and not held)


if __name__ == "__main__":
    sys.exit(main())
