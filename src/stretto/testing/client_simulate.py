"""`python -m stretto.testing.client_simulate`: the client under faults, for many seeds.

Prints requests by outcome, faults by kind and every *sometimes* property with its count. A violated invariant
ends the run with status 1 and prints the command that replays it.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import time
import traceback

import structlog

from stretto.testing.client_simulation import ClientReport, ClientSimulation
from stretto.testing.reports import Violation, print_counts, write_report

SOMETIMES = (
    "a hold",
    "a batch of several",
    "background rode along",
    "a replay",
    "a slow reader dropped",
    "a blocked stream",
    "a stale frame",
    "a stale reply",
    "a call timed out",
    "a hang",
    "gave up",
    "gave up with requests",
    "never came up",
    "a fallback",
    "refused: too many streams",
)


def run_seed(seed: int) -> ClientReport:
    simulation = ClientSimulation(seed)
    try:
        report = simulation.run()
    except Exception as error:
        command = f"python -m stretto.testing.client_simulate --seed {seed} --seeds 1"
        trail = "".join(traceback.format_exception(error)[-8:])
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}\n{trail}\nreplay: {command}") from None
    report.digest = hashlib.sha256("\n".join(simulation.trace).encode()).hexdigest()
    return report


def quiet() -> None:
    """Silence the client's log: it reports every worker death, and here there are thousands."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    logging.getLogger("stretto.engine.worker").setLevel(logging.CRITICAL + 1)


def run_seeds(first: int, count: int) -> ClientReport:
    total = ClientReport()
    for seed in range(first, first + count):
        total.add(run_seed(seed))
    return total


def show(report: ClientReport, seconds: float) -> None:
    print(
        f"{report.seeds:,} seeds, {report.requests:,} requests, {report.virtual_s / 3600:.1f} hours of "
        f"virtual time in {seconds:.0f} s, no violation"
    )
    print_counts(report, laws=SOMETIMES)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stretto.testing.client_simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument(
        "--lenient", action="store_true", help="do not fail when a sometimes law was never seen"
    )
    options = parser.parse_args(arguments)
    quiet()
    started = time.monotonic()
    try:
        total = run_seeds(options.seed, options.seeds)
    except Violation as violation:
        print(f"\nVIOLATION {violation}")
        return 1
    seconds = time.monotonic() - started
    show(total, seconds)
    if options.json:
        hours = round(total.virtual_s / 3600, 2)
        figures = {"seeds": total.seeds, "requests": total.requests, "virtual_hours": hours}
        write_report(options.json, total, laws=SOMETIMES, seconds=round(seconds, 1), **figures)
    unseen = [law for law in SOMETIMES if not total.sometimes[law]]
    if unseen and not options.lenient and options.seeds != 1:
        print("\nnever seen: " + ", ".join(unseen))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
