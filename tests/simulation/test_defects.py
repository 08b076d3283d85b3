"""The simulator can fail: each defect, planted in a copy of the source, is caught."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.caught_at import CAUGHT_AT
from tests.simulation.defects import DEFECTS
from tools.plant import SOURCE, try_defect

TICKS = "120000"


def test_there_are_enough_of_them():
    assert len(DEFECTS) >= 25
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_its_text_stands_exactly_once(defect):
    assert (SOURCE / "stretto" / defect.file).read_text(encoding="utf-8").count(defect.before) == 1


def test_seeds_are_those_of_defects():
    assert CAUGHT_AT.keys() <= {defect.name for defect in DEFECTS}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_simulator_catches(defect):
    command = [sys.executable, "-m", "stretto.testing.simulate", "--lenient", "--ticks", TICKS, "--seed"]
    for seed in sorted({0, CAUGHT_AT.get(defect.name, 0)}, reverse=True):
        result = try_defect(defect, [*command, str(seed)], signs=("VIOLATION",))
        if result.caught:
            break
    assert result.caught, result.by
