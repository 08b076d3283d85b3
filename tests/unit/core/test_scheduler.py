"""The scheduler as callers see it: submit, cancel, stop, drain, deadlines, and ticks one after the other."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.scheduler import Scheduler
from stretto.core.tick import End, Idle, PreemptReason, Tick
from stretto.errors import InvariantError
from stretto.testing import strategies
from tests.unit.core.rig import STEADY, VOCAB, Rig, ask, paged, streams


def code(answer) -> str:
    return "accepted" if answer.accepted else answer.error.code


def test_four_slots_hold_eight_in_flight_then_callers_wait_then_it_is_full():
    rig = Rig(Limits(n_seq_max=4, queue_depth=2, max_queue=3), streams(4))
    answers = [code(rig.submit(ask(f"r{index}", 9, max_tokens=50))) for index in range(13)]
    assert answers == ["accepted"] * 11 + ["queue_full"] * 2
    rig.step()
    queue = rig.state.queue
    assert (len(rig.state.active), queue.entered(1), queue.callers(1)) == (4, 8, 3)


def test_bounds_hold_for_each_priority():
    rig = Rig(Limits(n_seq_max=1, queue_depth=1, max_queue=1), streams(1))
    for index in range(4):
        rig.submit(ask(f"b{index}", 9, priority=Priority.BACKGROUND))
    assert code(rig.submit(ask("b9", 9, priority=Priority.BACKGROUND))) == "queue_full"
    assert code(rig.submit(ask("u", 9, priority=Priority.URGENT))) == "accepted"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ask("r", ()), "empty_prompt"),
        (ask("r", 64), "prompt_too_long"),
        (ask("r", 99), "prompt_too_long"),
        (ask("r", 5, max_tokens=0), "invalid_request"),
        (ask("r", [3, VOCAB]), "invalid_token"),
        (ask("r", [3, -1]), "invalid_token"),
        (ask("taken", 5), "duplicate_request_id"),
        (ask("r", 63), "accepted"),
    ],
)
def test_what_can_never_run_is_refused_at_once(request_, expected):
    rig = Rig(Limits(n_seq_max=1), streams(1, window=64))
    rig.accept(ask("taken", 5))
    answer = rig.submit(request_)
    assert code(answer) == expected
    assert answer.accepted or answer.error.hint


def test_an_id_may_be_used_again_once_its_request_is_over():
    rig = Rig()
    rig.serve(ask("a", 5))
    assert rig.submit(ask("a", 5)).accepted


def test_generation_ends_at_the_window():
    rig = Rig(Limits(n_seq_max=1), streams(1, window=32))
    rig.serve(ask("a", 30, max_tokens=50))
    assert len(rig.output("a")) == 2


# --- ending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("can", [streams(2), paged(2), paged(2, plan_ahead=1)])
def test_cancelling_frees_the_slot_within_one_plan(can):
    rig = Rig(Limits(n_seq_max=2), can)
    rig.accept(ask("a", 9, max_tokens=500), ask("b", 9, max_tokens=500))
    for _ in range(5):
        rig.step()
    rig.scheduler.cancel("a")
    rig.scheduler.cancel("nobody")
    for _ in range(1 + can.plan_ahead):
        rig.step()
    assert rig.slot_of("a") is None
    assert (rig.ends["a"].end, rig.ends["a"].reason) == (End.CANCELLED, "client")
    assert rig.slot_of("b") is not None


def test_cancelling_twice_or_before_it_ran_ends_it_once():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("a", 9, max_tokens=50), ask("b", 9))
    rig.scheduler.cancel("b")
    rig.scheduler.cancel("b")
    rig.run()
    assert rig.ends["b"].end is End.CANCELLED
    assert rig.ends["b"].generated_tokens == 0


def test_a_stop_string_keeps_what_came_before_it():
    rig = Rig()
    rig.accept(ask("a", 9, max_tokens=500))
    rig.run(until=lambda: len(rig.output("a")) == 7)
    rig.scheduler.stop("a", 4)
    rig.step()
    terminal = rig.ends["a"]
    assert (terminal.end, terminal.reason, terminal.tokens_kept) == (End.FINISHED, "stop", 4)


def test_drain_ends_what_is_queued_at_once_and_lets_the_rest_finish():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("runs", 9, max_tokens=20), ask("waits", 9))
    rig.step()
    rig.scheduler.drain(rig.clock.now)
    assert code(rig.submit(ask("late", 9))) == "shutting_down"
    rig.step()
    assert (rig.ends["waits"].end, rig.ends["waits"].reason) == (End.REJECTED, "shutting_down")
    rig.run()
    assert rig.ends["runs"].end is End.FINISHED


def test_a_parked_request_survives_a_drain():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("a", 9, max_tokens=9))
    rig.step()
    rig.state.preempt(rig.slot_of("a"), PreemptReason.MEMORY)
    rig.scheduler.drain(rig.clock.now)
    rig.run()
    assert rig.ends["a"].end is End.FINISHED


def test_shutdown_cuts_what_runs():
    rig = Rig()
    rig.accept(ask("a", 9, max_tokens=900))
    rig.step()
    rig.scheduler.shutdown(rig.clock.now)
    rig.run()
    assert (rig.ends["a"].end, rig.ends["a"].reason) == (End.CANCELLED, "shutdown")


# --- time --------------------------------------------------------------------------------------------


def test_a_deadline_ends_what_waits_and_what_runs():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(
        ask("runs", 9, max_tokens=900, deadline_s=rig.clock.now + 5.0),
        ask("waits", 9, deadline_s=rig.clock.now + 5.0),
    )
    rig.step()
    rig.clock.advance(5.0)
    rig.step()
    for request_id in ("runs", "waits"):
        assert (rig.ends[request_id].end, rig.ends[request_id].reason) == (End.CANCELLED, "deadline")
    assert rig.state.missed == 2


def test_deadlines_fire_without_traffic():
    """Nothing can be planned while a grammar's token is in flight: Idle says until when to sleep at most."""
    rig = Rig(Limits(n_seq_max=1), paged(1, plan_ahead=1))
    deadline_s = rig.clock.now + 3.0
    rig.accept(ask("a", 1, max_tokens=90, grammar="g", deadline_s=deadline_s))
    assert isinstance(rig.scheduler.plan(rig.clock.now), Tick)
    idle = rig.scheduler.plan(rig.clock.now)
    assert idle == Idle(deadline_s)


def test_idle_sleeps_for_ever_when_nothing_is_due():
    rig = Rig()
    rig.serve(ask("a", 9, deadline_s=rig.clock.now + 100.0))
    assert rig.scheduler.plan(rig.clock.now) == Idle(None)


def test_a_caller_that_waits_too_long_to_enter_is_told_so():
    rig = Rig(Limits(n_seq_max=1, queue_depth=1, max_queue=5, max_queue_wait_s=2.0), streams(1))
    rig.accept(ask("runs", 9, max_tokens=2000), ask("waits", 9))
    rig.step()
    rig.clock.advance(2.0)
    rig.step()
    assert (rig.ends["waits"].end, rig.ends["waits"].reason) == (End.REJECTED, "queue_full")
    assert rig.state.missed == 1


def test_a_request_that_finds_no_place_in_the_queue_counts_as_missed():
    rig = Rig(Limits(n_seq_max=1, queue_depth=1, max_queue=2), streams(1))
    submitted = [rig.scheduler.submit(ask(f"r{i}", 9), rig.clock.now) for i in range(4)]
    refused = [one.error.code for one in submitted if one.error is not None]
    assert refused == ["queue_full"] * rig.state.missed
    assert refused


def test_planning_too_far_ahead_is_our_bug():
    scheduler = Scheduler(Limits(n_seq_max=1), streams(1))
    scheduler.submit(ask("a", 40), 0.0)
    assert isinstance(scheduler.plan(0.0), Tick)
    with pytest.raises(InvariantError, match="too many ticks"):
        scheduler.plan(0.0)


def test_every_slot_needs_a_sequence():
    with pytest.raises(ValueError, match="every slot needs a sequence"):
        Scheduler(Limits(n_seq_max=4), streams(3))


# --- text --------------------------------------------------------------------------------------------


@settings(STEADY, max_examples=40)
@given(data=st.data())
def test_the_text_does_not_depend_on_limits_or_layout(data):
    """Promise 1: the same request, whatever the chunks, slots, cache, pages and neighbours."""
    limits = data.draw(strategies.limits())
    can = data.draw(strategies.capabilities(slots=limits.n_seq_max, window=96))
    rig = Rig(limits, can)
    for index in range(data.draw(st.integers(1, 4))):
        prompt = strategies.tokens(min_size=2, max_size=min(30, can.pool_tokens - 2))
        rig.submit(data.draw(strategies.requests(request_id=f"r{index}", prompt=prompt)))
    rig.run()
    for request_id, terminal in rig.ends.items():
        assert terminal.end is End.FINISHED, terminal
        witness = rig.witnesses[request_id]
        right = rig.model.continuation(witness.request, count=len(witness.output))
        assert witness.output == right
    assert array("i") not in [witness.output for witness in rig.witnesses.values()]


def test_when_memory_fails_the_only_request_the_next_one_runs_in_the_same_plan(monkeypatch):
    """With nothing in flight, nobody would call for another plan."""
    rig = Rig(Limits(n_seq_max=1), paged(1))
    reserve = rig.state.ledger.reserve
    monkeypatch.setattr(
        rig.state.ledger, "reserve", lambda slot, length: slot.job.id != "fails" and reserve(slot, length)
    )
    rig.accept(ask("fails", 20), ask("next", 10, start=5))
    assert isinstance(rig.step(), Tick)
    rig.run()
    assert rig.ends["fails"].reason == "out_of_memory"
    assert rig.ends["next"].end is End.FINISHED
