"""Limits: the defaults of the seed, and values that cannot work are refused."""

from __future__ import annotations

import pytest

from stretto.core.limits import Limits, Preemption


def test_defaults():
    limits = Limits()
    assert (limits.n_seq_max, limits.in_flight_max, limits.max_queue) == (4, 8, 512)
    assert (limits.n_batch, limits.prefill_chunk, limits.cache_slot_timeout_s) == (2048, 512, 30.0)
    assert (limits.cache, limits.cache_min_tokens, limits.preemption) == ("prefix", 100, Preemption.RESUME)


def test_in_flight_is_slots_times_depth():
    assert Limits(n_seq_max=3, queue_depth=5).in_flight_max == 15


@pytest.mark.parametrize(
    "bad",
    [
        {"n_seq_max": 0},
        {"n_seq_max": 8, "n_batch": 7},
        {"prefill_chunk": 0},
        {"queue_depth": 0},
        {"max_queue": -1},
        {"cache": "lru"},
        {"tenant_weights": {"a": 0.0}},
    ],
)
def test_what_cannot_work_is_refused(bad):
    with pytest.raises(ValueError, match=r"."):
        Limits(**bad)


def test_an_unknown_policy_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="none, system_prompt, incremental, prefix"):
        Limits(cache="lru")
