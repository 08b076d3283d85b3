"""The predicted wait of a newcomer: for a slot, and for prompts ahead of it."""

from __future__ import annotations

from stretto.core import backlog
from stretto.core.backlog import Backlog, slot_wait_s
from stretto.core.limits import Limits
from tests.unit.core.rig import Rig, ask, streams


def test_a_free_slot_means_no_wait():
    assert slot_wait_s(4, 3, 10.0) == 0.0
    assert Backlog(4, 3, 0.5, 10.0).wait_s == 0.5


def test_requests_ahead_leave_at_the_rate_of_the_slots():
    assert slot_wait_s(4, 4, 10.0) == 2.5
    assert slot_wait_s(4, 11, 10.0) == 20.0
    assert Backlog(4, 4, 1.0, 10.0).wait_s == 3.5


def test_a_running_scheduler_predicts_from_what_it_measured():
    rig = Rig(Limits(n_seq_max=2), streams(2))
    assert backlog.predict(rig.state)[:3] == (2, 0, 0.0)
    for index in range(5):
        rig.accept(ask(f"r{index}", 40, max_tokens=4))
    rig.step()
    found = backlog.predict(rig.state)
    assert (found.slots, found.occupied) == (2, 5)
    assert found.service_s > 0.0
    rig.run()
    assert rig.state.service_s > 0.0
    assert backlog.predict(rig.state).wait_s == 0.0


def test_prompts_in_progress_are_ahead_of_a_newcomer():
    rig = Rig(Limits(n_seq_max=2, prefill_chunk=32), streams(2))
    rig.accept(ask("long", 400, max_tokens=4))
    rig.step()
    before = backlog.predict(rig.state).prefill_s
    rig.step()
    assert 0.0 < backlog.predict(rig.state).prefill_s < before
