"""A draft model where ticks are planned ahead: a tick waits for its drafts, and for nothing else."""

from __future__ import annotations

import pytest

from stretto.core.draft_gain import Kind
from stretto.core.draft_price import MODEL
from stretto.core.limits import Limits
from stretto.core.tick import Outcome
from tests.unit.core.rig import Rig, ask, paged
from tests.unit.core.test_draft_waits import CHEAP_ROWS, DEAR_ROWS, serve, with_slow_launches

CHEAP_STEPS = ((1, 1e-5), (32, 2e-5))
DEAR_STEPS = ((1, 1.0), (32, 2.0))


def ahead(latency, running: int, steps=CHEAP_STEPS, **more) -> Rig:
    verified = tuple((rows, latency.a_s + rows * latency.b_s) for rows in range(1, 10))
    more = {"decode_passes": verified, "draft_passes": steps, "lookup_drafts": False} | more
    can = paged(running, plan_ahead=1, **more)
    return Rig(Limits(n_seq_max=running), can, latency=latency)


@pytest.mark.parametrize("running", [1, 4])
def test_drafts_of_the_model_are_awaited_and_save_ticks(running):
    rig = ahead(CHEAP_ROWS, running)
    waits = serve(rig, running, outputs=100, draft_tokens=4)
    assert {name for end in rig.ends.values() for name in end.drafters} == {MODEL}
    assert sum(end.accepted_drafts for end in rig.ends.values()) > 50 * running
    assert len(rig.ticks) < 70
    assert waits > 20
    assert not any(tick.propose for tick in rig.ticks)  # lookup is off


def test_a_model_that_does_not_pay_has_no_tick_wait():
    for rig in (ahead(CHEAP_ROWS, 2, DEAR_STEPS), ahead(DEAR_ROWS, 8)):
        running = rig.can.sequences_max
        serve(rig, running, outputs=60, draft_tokens=4)
        assert sum(tick.awaited for tick in rig.ticks) <= len(rig.ticks) // 10


def test_asking_how_far_behind_it_is_waits_for_nothing():
    rig = ahead(CHEAP_ROWS, 1)
    rig.state.drafts.model.pays = lambda *_: False  # type: ignore[method-assign]
    waits = serve(rig, 1, outputs=60, draft_tokens=4)
    assert any(0 in tick.ask_model.values() for tick in rig.ticks)
    assert not any(tick.awaited for tick in rig.ticks)
    assert waits <= 2  # at the end


def test_a_lost_model_is_not_asked_again():
    rig = ahead(CHEAP_ROWS, 2)
    collect = rig.backend.collect

    def losing() -> Outcome:
        outcome = collect()
        if outcome.drafts:
            outcome.model_lost, outcome.drafts, outcome.drafters = True, {}, {}
        return outcome

    rig.backend.collect = losing  # type: ignore[method-assign]
    serve(rig, 2, outputs=60, draft_tokens=4)
    asked = [tick for tick in rig.ticks if tick.ask_model]
    assert sum(tick.awaited for tick in rig.ticks) == 1
    assert asked[-1].id < 20
    assert sum(end.proposed_drafts for end in rig.ends.values()) == 0


def test_pauses_for_the_model_are_losses_of_the_model():
    """The model is given a rest."""
    rig = with_slow_launches(ahead(CHEAP_ROWS, 1))
    waits = serve(rig, 1, outputs=300, draft_tokens=4)
    assert waits < 40
    assert rig.state.drafts.gain.losses > 0
    assert rig.state.drafts.gain.allows(1, Kind.LOOKUP)


def test_requests_without_drafts_ask_nothing():
    rig = ahead(CHEAP_ROWS, 2)
    rig.serve(ask("a", 9, max_tokens=40), ask("b", 9, max_tokens=40))
    assert not any(tick.ask_model or tick.awaited for tick in rig.ticks)
