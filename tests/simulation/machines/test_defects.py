"""The state machines can fail: each one sees both of its planted defects."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.machines.defects import PLANTED, Planted
from tools.plant import SOURCE, try_defect

HERE = Path(__file__).resolve().parent
SIGNS = ("Failing test case", "Falsifying example")  # hypothesis found an example: not a broken import


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p.machine}: {p.defect.name}")
def test_the_machine_sees_it(planted: Planted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STRETTO_PROVE", "1")  # at the size of the proof: it ends at the first example anyway
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    answer = try_defect(planted.defect, [*command, str(HERE / planted.machine)], signs=SIGNS)
    assert answer.caught, f"{planted.machine} did not see it: {answer.by}"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p.machine}: {p.defect.name}")
def test_its_text_stands_exactly_once(planted: Planted):
    text = (SOURCE / "stretto" / planted.defect.file).read_text(encoding="utf-8")
    assert text.count(planted.defect.before) == 1


def test_each_machine_has_two_at_least():
    machines = {path.name for path in HERE.glob("test_*.py")} - {"test_defects.py"}
    counts = Counter(planted.machine for planted in PLANTED)
    assert set(counts) == machines
    assert min(counts.values()) >= 2
