"""Scenarios: drawn from the seed alone, and each one is valid."""

from __future__ import annotations

import pytest

from stretto.core.limits import CACHE_POLICIES
from stretto.core.scheduler import Scheduler
from stretto.testing.scenario import draw


def test_the_same_seed_gives_the_same_scenario():
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("seed", range(0, 200, 40))
def test_every_scenario_can_run(seed):
    scenario = draw(seed)
    scheduler = Scheduler(scenario.limits, scenario.capabilities)
    assert len(scheduler.state.slots) == scenario.limits.n_seq_max


def test_seeds_cover_every_layout_and_policy():
    drawn = [draw(seed) for seed in range(200)]
    assert {s.layout for s in drawn} >= {"streams", "hybrid", "window", "unified", "pages", "ahead"}
    assert {s.limits.cache for s in drawn} == set(CACHE_POLICIES)
