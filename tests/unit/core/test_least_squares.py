"""The fit: it finds a line, follows one that changes, and is not led astray by traffic that is all alike."""

from __future__ import annotations

import random

import pytest

from stretto.core.least_squares import LeastSquares, solved

TRUE = (0.008, 0.0045, 4e-6)  # seconds of a tick, of a row, of a token of context


def seconds(rows: float, contexts: float, noise: float = 1.0) -> float:
    return (TRUE[0] + TRUE[1] * rows + TRUE[2] * contexts) * noise


def test_it_finds_a_line():
    fit, draw = LeastSquares(3), random.Random(1)
    for _ in range(200):
        rows = draw.randrange(1, 17)
        contexts = rows * draw.randrange(50, 900)
        fit.update([1.0, rows, contexts], seconds(rows, contexts))
    assert fit.coefficients == pytest.approx(TRUE, rel=0.05)


def test_one_sample_is_believed_as_a_whole():
    fit = LeastSquares(3)
    fit.update([1.0, 4.0, 800.0], 0.03)
    assert fit.predict([1.0, 4.0, 800.0]) == pytest.approx(0.03, rel=0.01)
    assert 0.03 < fit.predict([1.0, 8.0, 1600.0]) < 0.06, "twice as much is more, and not more than twice"


@pytest.mark.parametrize("seed", range(5))
def test_ticks_that_are_all_alike_do_not_lead_it_astray(seed):
    """Minutes of the same rows, in which only the contexts creep up: what a recursive fit diverged on."""
    fit, draw = LeastSquares(3), random.Random(seed)
    for rows in (5, 12, 3, 16, 1, 7):
        contexts = rows * 150.0
        for _ in range(1500):
            contexts += rows / 50
            fit.update([1.0, rows, contexts], seconds(rows, contexts, draw.lognormvariate(0, 0.15)))
        assert fit.predict([1.0, rows, contexts]) == pytest.approx(seconds(rows, contexts), rel=0.15)
        for other in (1, 4, 8, 16):
            there = [1.0, float(other), other * 200.0]
            assert 0.5 < fit.predict(there) / seconds(other, other * 200.0) < 2.0, (rows, other)
        assert min(fit.coefficients) >= 0.0


def test_what_is_not_told_apart_stays_as_it_was():
    fit, draw = LeastSquares(3), random.Random(2)
    for _ in range(200):
        rows = draw.randrange(1, 17)
        fit.update([1.0, rows, rows * 200.0], seconds(rows, rows * 200.0))
    before = fit.predict([1.0, 16.0, 3200.0])
    for _ in range(5000):
        fit.update([1.0, 4.0, 800.0], seconds(4, 800.0))
    assert fit.predict([1.0, 16.0, 3200.0]) == pytest.approx(before, rel=0.02)


def test_a_coefficient_that_would_be_negative_is_zero_and_the_others_do_without_it():
    fit = LeastSquares(2)
    for x in (1.0, 2.0, 3.0, 4.0) * 20:
        fit.update([1.0, x], 1.0 / x)
    assert fit.coefficients[1] == 0.0
    assert fit.coefficients[0] > 0.0


def test_after_a_doubt_the_next_sample_counts():
    fit = LeastSquares(1)
    for _ in range(100):
        fit.update([1.0], 1.0)
    fit.update([1.0], 5.0)
    assert fit.coefficients[0] < 1.1
    fit.doubt()
    fit.update([1.0], 5.0)
    assert fit.coefficients[0] == pytest.approx(5.0, rel=0.03)


def test_an_input_that_is_always_zero_has_no_say():
    fit = LeastSquares(3)
    for rows in (1.0, 2.0, 3.0) * 10_000:
        fit.update([1.0, rows, 0.0], 0.01 * rows + 0.01)
    assert fit.coefficients == pytest.approx([0.01, 0.01, 0.0], rel=0.01)


def test_small_systems_are_solved():
    assert solved([[2.0, 1.0], [1.0, 3.0]], [5.0, 10.0]) == pytest.approx([1.0, 3.0])
