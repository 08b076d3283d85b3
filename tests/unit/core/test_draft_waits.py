"""Drafts where ticks are planned ahead: a tick waits for the tokens of the one before only if that pays."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.core.limits import Limits
from stretto.core.tick import Idle, Tick
from tests.unit.core.rig import Rig, ask, paged

CHEAP_ROWS = LatencyModel(a_s=4e-3, b_s=1e-5, c_s=0.0)
DEAR_ROWS = LatencyModel(a_s=1e-4, b_s=4e-3, c_s=0.0)


def ahead(latency: LatencyModel, running: int, **more) -> Rig:
    return Rig(Limits(n_seq_max=running), paged(running, plan_ahead=1, **more), latency=latency)


def serve(rig: Rig, running: int, outputs: int, **params) -> int:
    """The number of plans that waited beside a tick in flight."""
    waits = []

    def look(planned: Tick | Idle) -> None:
        if isinstance(planned, Idle) and rig.flying:
            waits.append(planned)

    rig.after_plan.append(look)
    rig.serve(*(ask(f"r{at}", 9 + at, max_tokens=outputs, **params) for at in range(running)))
    return len(waits)


def with_slow_launches(rig: Rig) -> Rig:
    """The host takes ten passes to launch a tick that nothing hides."""

    def slow_launch(planned: Tick | Idle) -> None:
        if isinstance(planned, Tick) and not rig.flying:
            rig.clock.advance(10 * CHEAP_ROWS.a_s)

    rig.after_plan.append(slow_launch)
    return rig


@pytest.mark.parametrize("running", [1, 4])
def test_cheap_rows_are_verified_and_save_ticks(running):
    rig = ahead(CHEAP_ROWS, running)
    waits = serve(rig, running, outputs=100, draft_tokens=4)
    assert sum(end.accepted_drafts for end in rig.ends.values()) > 50 * running
    assert len(rig.ticks) < 70
    assert waits > 20


def test_dear_rows_do_not_stop_the_pipeline():
    rig = ahead(DEAR_ROWS, 8)
    waits = serve(rig, 8, outputs=200, draft_tokens=4)
    assert len(rig.ticks) < 215
    assert waits < 25  # the first trials, then every 64th tick and rarer, and the end


def test_a_slot_that_drafts_has_the_others_wait():
    """Else it would have rows in every second pass, and passes take as long without them."""
    rig = ahead(CHEAP_ROWS, 2)
    rig.accept(ask("plain", 9, max_tokens=60), ask("drafted", 9, max_tokens=200, draft_tokens=4))
    rig.run()
    assert rig.ends["drafted"].accepted_drafts > 100
    drafted = [tick for tick in rig.ticks if tick.decode_rows > tick.decode_spans]
    both = [tick for tick in drafted if tick.decode_spans == 2]
    assert len(both) > 10
    ticks = [tick.id for tick in both]
    assert sum(after - before == 1 for before, after in pairwise(ticks)) > len(ticks) // 2


def test_requests_without_drafts_never_wait():
    rig = ahead(CHEAP_ROWS, 2)
    assert serve(rig, 2, outputs=50) <= 2


@pytest.mark.parametrize("params", [{"repeat_penalty": 1.3}, {"grammar": "root ::= x"}])
def test_a_backend_may_draft_only_for_requests_without_a_history(params):
    rig = ahead(CHEAP_ROWS, 1, history_drafts=False)
    serve(rig, 1, outputs=50, draft_tokens=4, **params)
    assert not any(tick.propose for tick in rig.ticks)
    assert rig.ends["r0"].proposed_drafts == 0


def test_a_long_pause_between_passes_is_counted():
    """Waiting is given up."""
    rig = with_slow_launches(ahead(CHEAP_ROWS, 1))
    waits = serve(rig, 1, outputs=300, draft_tokens=4)
    assert waits < 40
    quick = ahead(CHEAP_ROWS, 1)
    serve(quick, 1, outputs=300, draft_tokens=4)
    assert rig.ends["r0"].proposed_drafts < quick.ends["r0"].proposed_drafts // 4
