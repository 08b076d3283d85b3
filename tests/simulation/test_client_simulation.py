"""The engine in virtual time at the size of `make test`, and proof that its laws can be broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stretto.testing.client_simulate import SOMETIMES, quiet, run_seed, run_seeds
from tests.simulation.client.defects import DEFECTS
from tools.plant import SOURCE, try_defect

SEEDS = 200
# Both need a worker that dies again and again before it ever came up: a handful in a hundred seeds.
RARE = ("gave up", "gave up with requests", "never came up")


@pytest.fixture(autouse=True)
def _silence():
    import structlog

    quiet()
    yield
    structlog.reset_defaults()


@pytest.mark.slow
def test_every_request_ends_exactly_once_whatever_breaks():
    report = run_seeds(0, SEEDS)
    assert report.requests > 10_000
    assert [law for law in SOMETIMES if law not in RARE and not report.sometimes[law]] == []
    assert report.outcomes["stop"] > report.requests / 3


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed():
    code = (
        "import json; from stretto.testing.client_simulate import quiet, run_seed; quiet();"
        "print(json.dumps([run_seed(seed).digest for seed in range(6)]))"
    )
    here = [run_seed(seed).digest for seed in range(6)]
    for hash_seed in ("1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == here


def test_there_are_enough_defects():
    assert len(DEFECTS) >= 12
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_its_text_stands_exactly_once(defect):
    assert (SOURCE / "stretto" / defect.file).read_text(encoding="utf-8").count(defect.before) == 1


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_client_simulator_catches(defect):
    command = [sys.executable, "-m", "stretto.testing.client_simulate", "--seeds", str(SEEDS)]
    result = try_defect(defect, command, signs=("VIOLATION",))
    assert result.caught, result.by
