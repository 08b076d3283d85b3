"""Drafts on a device that runs ahead of the host never cost more than 2 %, and pay where rows are cheap.

Times of passes and of the host are those of an H200, for models of 0.6 and 8 billion parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from stretto.core.speculation import COMPARE_SLOTS, TRIAL_TOKENS, TRIALS_MIN
from tests.unit.core.paced import Pace, PacedRun, ratio

LOWEST = 0.98
OUTPUTS = 200


def line(*points: tuple[int, float]) -> Callable[[int], float]:
    """Seconds by rows, from measured milliseconds."""

    def seconds(rows: int) -> float:
        if rows <= points[0][0]:
            return points[0][1] * 1e-3
        pairs = list(pairwise(points))
        (low, low_ms), (high, high_ms) = next((p for p in pairs if rows <= p[1][0]), pairs[-1])
        return (low_ms + (high_ms - low_ms) * (rows - low) / (high - low)) * 1e-3

    return seconds


SMALL = Pace(
    line((1, 0.74), (4, 1.265), (16, 1.25), (64, 1.49), (256, 2.59)), lambda slots: 3e-4 + 6.6e-6 * slots
)
LARGE = Pace(
    line((1, 4.16), (4, 4.58), (16, 4.61), (64, 5.3), (256, 9.2)), lambda slots: 4.5e-4 + 8.5e-6 * slots
)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("streams", [1, 4, 16, 64])
@pytest.mark.parametrize("pace", [SMALL, LARGE], ids=["small", "large"])
def test_drafts_do_not_lose(pace, streams, acceptance):
    assert ratio(pace, streams, acceptance, outputs=OUTPUTS)[0] >= LOWEST


@pytest.mark.parametrize("acceptance", [0.0, 0.8])
def test_drafts_of_256_streams_do_not_lose(acceptance):
    assert ratio(SMALL, 256, acceptance, outputs=100)[0] >= LOWEST


@pytest.mark.parametrize(("streams", "least"), [(1, 1.8), (4, 1.8), (16, 1.8), (64, 1.2)])
def test_good_drafts_of_a_large_model_pay(streams, least):
    """The trials, in which all slots wait for the drafts of a few, are not held against later drafts."""
    assert ratio(LARGE, streams, 0.8, outputs=OUTPUTS)[0] >= least


@pytest.mark.parametrize("streams", [64, 128])
def test_trials_of_many_streams_take_few_ticks_and_proposals(streams):
    run = PacedRun(LARGE, streams, 0.0, drafts=4)
    run.run(60)
    asked = run.asked
    assert 1 <= len(asked) <= 5
    assert sum(asked[0].values()) <= TRIAL_TOKENS * TRIALS_MIN
    assert max(map(len, asked)) <= COMPARE_SLOTS


def test_a_host_that_takes_longer_than_the_device_gives_drafts_up():
    """Half of the drafts are right and rows cost nothing, but nothing hides the host's work any more."""
    slow_host = Pace(lambda rows: 1e-3, lambda slots: 1e-3, proposal_s=2e-4)
    found, run = ratio(slow_host, 16, 0.5, outputs=400)
    assert found >= LOWEST
    assert run.waits < run.ticks // 4
