"""The bars of `benchmarks/tuning.py`, which the tuning guide relies on."""

from __future__ import annotations

import pytest

from benchmarks.tuning import SLOTS, bars


def report(*rates: float, errors: int = 0, requests: int = 8) -> dict:
    runs = [
        {"all": {"output_tokens_per_s": rate, "errors": {"cut": errors}, "requests": requests}}
        for rate in rates
    ]
    return {"slots": {"runs": runs}}


@pytest.mark.parametrize(
    ("rates", "errors", "held"),
    [
        ((50, 80, 100, 120, 130), 0, True),
        ((50, 50, 50, 60, 60), 0, False),
        ((50, 80, 99, 120, 130), 1, False),
    ],
    ids=["as it should be", "slots do not help", "failures"],
)
def test_bars(rates, errors, held):
    assert len(rates) == len(SLOTS)
    assert all(bar.held for bar in bars(report(*rates, errors=errors))) == held


def test_empty_runs_and_reports_miss_their_bars():
    empty = bars(report(50, 80, 100, 120, 130, requests=0))
    assert not all(bar.held for bar in empty)
    assert not any(bar.held for bar in bars({}))
