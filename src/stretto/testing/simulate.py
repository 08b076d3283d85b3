"""`python -m stretto.testing.simulate`: many seeds, on all cores, until so many ticks are done.

Prints faults by kind, requests by outcome and every *sometimes* law with its count. A violated law ends
the run with status 1 and prints the one command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from multiprocessing import get_context

from stretto.testing.reports import Violation, print_counts, write_report
from stretto.testing.scenario import draw
from stretto.testing.simulation import Report, Simulation
from stretto.testing.sometimes import SOMETIMES

TICKS_PER_SEED = 1000


def run_seed(seed: int, ticks: int) -> Report:
    try:
        return Simulation(seed).run(ticks)
    except Exception as error:
        command = f"python -m stretto.testing.simulate --seed {seed} --ticks {ticks} --only"
        trail = "".join(traceback.format_exception(error)[-12:])
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}\n{trail}\nreplay: {command}") from None


def seeds_from(first: int, where: dict[str, str]) -> Iterator[int]:
    """Seeds whose scenario has these traits; all of them when none are asked for."""
    for seed in count(first):
        if not where or where.items() <= draw(seed).traits.items():
            yield seed


def run_many(
    first: int,
    ticks: int,
    workers: int,
    *,
    ticks_per_seed: int = TICKS_PER_SEED,
    where: dict[str, str] | None = None,
) -> Iterator[Report]:
    """Reports as seeds finish, until their ticks add up."""
    seeds = seeds_from(first, where or {})
    done = 0
    if workers == 1:
        while done < ticks:
            report = run_seed(next(seeds), ticks_per_seed)
            done += report.ticks
            yield report
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        pending: set[Future[Report]] = set()
        while done < ticks:
            while len(pending) < 2 * workers:
                pending.add(pool.submit(run_seed, next(seeds), ticks_per_seed))
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                report = future.result()
                done += report.ticks
                yield report
        for future in pending:
            future.cancel()


def show(report: Report, seconds: float) -> None:
    print(f"\n{report.ticks:,} ticks, {report.seeds:,} seeds, {seconds:.0f} s, no violation")
    print_counts(report, laws=SOMETIMES)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stretto.testing.simulate", description=__doc__)
    parser.add_argument(
        "--ticks", type=int, default=100_000, help="ticks in all (with --only: client steps of the seed)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", action="store_true", help="run just this one seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--trace", help="with --only: write the trace to this file")
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument("--where", action="append", default=[], help="only such seeds: layout=pages, …")
    parser.add_argument(
        "--lenient", action="store_true", help="do not fail when a sometimes law was never seen"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    total = Report()
    try:
        if options.only:
            simulation = Simulation(options.seed, keep_trace=bool(options.trace))
            try:
                total.add(simulation.run(options.ticks))
            finally:
                if options.trace:
                    with open(options.trace, "w", encoding="utf-8") as file:
                        file.write("\n".join(simulation.trace.lines or []) + "\n")
        else:
            where = dict(trait.split("=", 1) for trait in options.where)
            for report in run_many(options.seed, options.ticks, options.workers, where=where):
                total.add(report)
                if sys.stderr.isatty():
                    print(
                        f"\r{total.ticks:,} ticks, {total.seeds:,} seeds", end="", file=sys.stderr, flush=True
                    )
    except Violation as violation:
        print(f"\nVIOLATION {violation}")
        return 1
    seconds = time.monotonic() - started
    show(total, seconds)
    if options.json:
        figures = {"ticks": total.ticks, "seeds": total.seeds, "seconds": round(seconds, 1)}
        write_report(options.json, total, laws=SOMETIMES, **figures)
    unseen = [law for law in SOMETIMES if not total.sometimes[law]]
    if unseen and not options.only and not options.lenient:
        print("\nnever seen: " + ", ".join(unseen))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
