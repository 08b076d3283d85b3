"""The simulator at the size of `make test`: 80,000 ticks, every law, every *sometimes* law seen.

`make simulate` and the proof `core-simulation` run a million.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stretto.testing.simulate import run_many
from stretto.testing.simulation import Report, Simulation
from stretto.testing.sometimes import SOMETIMES

TICKS, TICKS_MAX = 80_000, 200_000  # more than the first only while a *sometimes* law was not seen
DIGEST_SEEDS = range(10)


@pytest.mark.slow
def test_80_000_ticks_break_no_law_and_see_every_sometimes_law():
    total = Report()
    for report in run_many(0, TICKS_MAX, workers=2):
        total.add(report)
        unseen = [law for law in SOMETIMES if not total.sometimes[law]]
        if total.ticks >= TICKS and not unseen:
            break
    assert total.ticks >= TICKS
    assert unseen == []
    assert sum(total.faults.values()) > 1_000


def digests(seeds: range) -> dict[str, str]:
    return {str(seed): Simulation(seed).run(200).digests[seed] for seed in seeds}


def test_the_same_seed_gives_the_same_trace_twice():
    assert digests(DIGEST_SEEDS) == digests(DIGEST_SEEDS)


def test_traces_are_byte_identical():
    lines = 0
    for seed in range(5):
        first, second = Simulation(seed, keep_trace=True), Simulation(seed, keep_trace=True)
        first.run(300)
        second.run(300)
        assert first.trace.lines == second.trace.lines
        lines += len(first.trace.lines or [])
    assert lines > 5 * 300


def test_traces_do_not_depend_on_the_hash_seed():
    code = (
        "import json; from stretto.testing.simulation import Simulation;"
        f"seeds = range({len(DIGEST_SEEDS)});"
        "print(json.dumps({str(s): Simulation(s).run(200).digests[s] for s in seeds}))"
    )
    for hash_seed in ("1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == digests(DIGEST_SEEDS)


def test_a_violation_prints_the_command_that_replays_it():
    from stretto.testing import simulate

    class Broken(Simulation):
        def run(self, ticks: int) -> Report:
            raise AssertionError("planted")

    real, simulate.Simulation = simulate.Simulation, Broken
    try:
        with pytest.raises(simulate.Violation, match=r"simulate --seed 7 --ticks 50 --only"):
            simulate.run_seed(7, 50)
    finally:
        simulate.Simulation = real
