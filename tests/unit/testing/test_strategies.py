"""The kit's strategies give values that the core accepts."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from stretto.core.capabilities import Share
from stretto.core.scheduler import Scheduler
from stretto.testing import strategies
from tests.unit.core.rig import STEADY


@STEADY
@given(st.data())
def test_limits_and_capabilities_go_together(data):
    limits = data.draw(strategies.limits())
    for layout in strategies.LAYOUTS:
        can = data.draw(strategies.capabilities(slots=limits.n_seq_max, layouts=(layout,)))
        assert (can.plan_ahead == 1) == (layout == "ahead")
        assert (can.share is Share.PAGES) == (layout in ("pages", "ahead"))
        Scheduler(limits, can)


@STEADY
@given(strategies.tokens(max_size=9), strategies.texts(max_size=9), strategies.tick_faults())
def test_texts_and_faults(tokens, text, faults):
    assert 1 <= len(tokens) <= 9
    assert 1 <= len(text) <= 9
    assert 0 not in tokens
    assert 0 not in text
    assert isinstance(bool(faults), bool)


def test_a_longer_text_begins_with_the_shorter():
    assert strategies.text(20, 3)[:12] == strategies.text(12, 3)
    assert strategies.text(12, 3) != strategies.text(12, 4)


def test_the_rest_of_the_kit_needs_no_hypothesis():
    code = "import stretto.testing.simulation, sys; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
