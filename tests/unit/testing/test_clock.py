"""The clock moves when told to, and only forwards."""

from __future__ import annotations

import pytest

from stretto.testing.clock import FakeClock


def test_it_moves_when_told_to():
    clock = FakeClock(10.0)
    assert clock.advance(2.5) == clock.now == 12.5
    assert clock.advance_to(20.0) == 20.0
    assert clock.advance_to(5.0) == 20.0


def test_it_does_not_run_backwards():
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1.0)
