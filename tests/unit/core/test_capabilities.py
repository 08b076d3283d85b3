"""Capabilities: combinations that no backend can mean are refused."""

from __future__ import annotations

import pytest

from stretto.core.capabilities import Capabilities, Rewind, Share


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"plan_ahead": 2}, "0 or 1"),
        ({"plan_ahead": 1}, "needs pages"),
        ({"share": Share.PAGES}, "size in pages"),
        ({"share": Share.RANGE}, "size in pages"),
        ({"share": Share.PAGES, "pages": 4, "rewind": Rewind.CHECKPOINT}, "rewinds anywhere"),
    ],
)
def test_what_makes_no_sense_is_refused(bad, why):
    with pytest.raises(ValueError, match=why):
        Capabilities(**{"sequences_max": 2, "window": 64} | bad)


def test_one_request_can_hold_the_window_or_the_whole_pool():
    assert Capabilities(sequences_max=2, window=64).pool_tokens == 64
    paged = {"share": Share.PAGES, "sequences_max": 2, "page_tokens": 4}
    assert Capabilities(**paged, window=64, pages=8).pool_tokens == 32
    assert Capabilities(**paged, window=64, pages=99).pool_tokens == 64


def test_a_snapshot_is_its_tokens_and_the_state_beside_them():
    can = Capabilities(sequences_max=1, window=64, bytes_per_token=10, state_bytes=7)
    assert can.snapshot_bytes(5) == 57
