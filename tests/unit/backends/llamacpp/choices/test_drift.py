"""Drift: choices are forgotten when passes take something else for long, and not for anything less."""

from __future__ import annotations

import pytest

from stretto.backends.llamacpp.calibration import PassFigures
from stretto.backends.llamacpp.choices.drift import PASSES, WINDOWS, Drift
from tests.unit.backends.llamacpp.passes.test_calls import tick

FIGURES = PassFigures(one_s=0.006, many_s=0.020, rows=8)


def watched() -> tuple[Drift, list[str]]:
    dropped: list[str] = []
    return Drift(FIGURES, on_stale=lambda: dropped.append("dropped")), dropped


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_another_speed_for_long_drops_the_entry_once(factor):
    drift, dropped = watched()
    for _ in range(PASSES * WINDOWS - 1):
        drift.note_pass(8, 0.020 * factor)
    assert not dropped
    for _ in range(2 * PASSES * WINDOWS):
        drift.note(tick(0, (0, 10, [5], 1), decode=1), 0.006 * factor)
    assert dropped == ["dropped"]


def test_the_measured_speed_keeps_it_and_rows_between_are_interpolated():
    drift, dropped = watched()
    for rows, pass_s in ((1, 0.006), (4, 0.012), (8, 0.020), (16, 0.036)):
        for _ in range(PASSES * WINDOWS):
            drift.note_pass(rows, pass_s * 1.2)
    assert not dropped


def test_disturbances_in_between_do_not_add_up():
    drift, dropped = watched()
    for _ in range(3 * WINDOWS):
        for slow in (True, False):
            for _ in range(PASSES):
                drift.note_pass(8, 0.080 if slow else 0.020)
    assert not dropped


def test_a_minority_of_fast_passes_is_enough():
    """Neighbours and long contexts only add: the lower quartile counts."""
    drift, dropped = watched()
    for at in range(4 * PASSES * WINDOWS):
        drift.note_pass(8, 0.020 if at % 3 == 0 else 0.100)
    assert not dropped


def test_prompts_long_contexts_and_operations_do_not_count():
    drift, dropped = watched()
    for made in (tick(0, (0, 0, [5, 6, 7], 1)), tick(0, (0, 2000, [5], 1), decode=1)):
        for _ in range(PASSES * WINDOWS):
            drift.note(made, 5.0)
    assert not dropped
