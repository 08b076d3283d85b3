"""What a finished tick changes: tokens join, ends come once, a failure touches whom it belongs to."""

from __future__ import annotations

import pytest

from stretto.backends.simulated.faults import TickFaults
from stretto.core import event_names
from stretto.core.limits import Limits
from stretto.core.ops import OpKind
from stretto.core.tick import End, PassFailure
from stretto.errors import InvariantError
from stretto.testing.faults import ScriptedFaults
from tests.unit.core.rig import Rig, ask, paged, prompt, streams, unified


def reason(rig: Rig, request_id: str) -> tuple[End, str]:
    return rig.ends[request_id].end, rig.ends[request_id].reason


def test_length_and_stop():
    rig = Rig()
    rig.serve(ask("a", 9, max_tokens=3))
    assert reason(rig, "a") == (End.FINISHED, "length")
    second = rig.output("a")[1]
    rig = Rig()
    rig.accept(ask("a", 9, max_tokens=30, ignore_eos=False, stop_token_ids=frozenset({second})))
    rig.run()
    assert list(rig.output("a")) == list(rig.output("a"))[:2]
    assert reason(rig, "a") == (End.FINISHED, "stop")


def test_no_stop_before_min_tokens():
    rig = Rig()
    rig.serve(ask("a", 9, max_tokens=6))
    stops = frozenset(rig.output("a"))
    rig = Rig()
    rig.accept(ask("a", 9, max_tokens=6, min_tokens=4, ignore_eos=False, stop_token_ids=stops))
    rig.run()
    assert len(rig.output("a")) == 4


def test_times_count_from_arrival():
    rig = Rig(Limits(n_seq_max=1, cache="none"), streams(1))
    rig.accept(ask("a", 50, max_tokens=20), ask("b", 50, max_tokens=5))
    rig.run()
    a, b = rig.ends["a"], rig.ends["b"]
    assert a.queue_wait_s == 0.0
    assert b.queue_wait_s == pytest.approx(a.duration_s)
    assert b.queue_wait_s < b.ttft_s < b.duration_s
    assert (a.prompt_tokens, a.generated_tokens, a.cached_tokens) == (50, 20, 0)


def test_the_ticks_measurements():
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2))
    rig.accept(ask("a", 5, max_tokens=9))
    planned = rig.scheduler.plan(rig.clock.now)
    rig.backend.launch(planned)
    outcome = rig.backend.collect()
    events = rig.scheduler.commit(outcome, rig.clock.now)
    assert events.tick.batch_size == events.tick.prefill_tokens == planned.rows
    assert (events.tick.decode_tokens, events.tick.active_slots, events.tick.queue_depth) == (0, 1, 0)
    assert events.tick.eval_s == outcome.pass_s


def test_an_outcome_that_is_not_awaited_is_our_bug():
    rig = Rig()
    rig.accept(ask("a", 5))
    planned = rig.scheduler.plan(rig.clock.now)
    rig.backend.launch(planned)
    outcome = rig.backend.collect()
    outcome.tick_id += 1
    with pytest.raises(InvariantError, match="not the one awaited"):
        rig.scheduler.commit(outcome, rig.clock.now)


@pytest.mark.parametrize("fault", ["bad_logits", "bad_token"])
def test_a_bad_output_fails_one_request_alone(fault):
    faults = ScriptedFaults({3: TickFaults(**{fault: frozenset({1})})})
    rig = Rig(Limits(n_seq_max=3, cache="none"), streams(3), faults=faults)
    rig.accept(*(ask(f"r{index}", 3, max_tokens=12) for index in range(3)))
    rig.run()
    assert reason(rig, "r1") == (End.FAILED, "bad_output")
    assert reason(rig, "r0") == reason(rig, "r2") == (End.FINISHED, "length")


@pytest.mark.parametrize("cache", ["incremental", "prefix"])
@pytest.mark.parametrize("can", [streams(1), unified(1), paged(1), paged(1, plan_ahead=1)])
@pytest.mark.parametrize("fault", ["bad_logits", "bad_token"])
def test_nothing_of_a_bad_output_is_found_by_the_next(fault, can, cache):
    """Not by those that begin alike, and where memory is a sequence it is emptied: its cells may hold NaN."""

    class SaysNonsense:
        def at(self, tick_id):
            running = rig.state.slots[0].job
            bad = running is not None and running.id == "bad" and running.generated >= 3
            return TickFaults(**{fault: frozenset({0})}) if bad else TickFaults()

    rig = Rig(Limits(n_seq_max=1, cache=cache, cache_min_tokens=4), can, faults=SaysNonsense())
    rig.accept(ask("bad", 80, start=1, max_tokens=20))
    rig.run()
    assert reason(rig, "bad") == (End.FAILED, "bad_output")
    rig.serve(ask("next", 60, start=1))
    assert rig.ends["next"].cached_tokens == 0
    if can.page_tokens == 0:
        assert OpKind.CLEAR in [op.kind for tick in rig.ticks for op in tick.ops]


def test_a_pass_that_fails_once_costs_nobody_anything():
    for fault in (TickFaults(fail_before=True), TickFaults(fail_after_rows=2), TickFaults(malformed=True)):
        rig = Rig(Limits(n_seq_max=3, cache="none"), streams(3), faults=ScriptedFaults({4: fault}))
        rig.serve(*(ask(f"r{index}", 20, max_tokens=12) for index in range(3)))
        assert event_names.PASS_FAILED in rig.names()


@pytest.mark.parametrize("can", [streams(4), unified(4), paged(4), paged(4, plan_ahead=1)])
def test_a_poisoned_request_is_found_and_fails_alone(can):
    class Poison:
        def at(self, tick_id):
            return TickFaults(poison_request="r2")

    rig = Rig(Limits(n_seq_max=4, cache="none"), can, faults=Poison())
    rig.accept(*(ask(f"r{index}", 20, max_tokens=12) for index in range(4)))
    rig.run()
    assert reason(rig, "r2") == (End.FAILED, "pass_failed")
    assert all(reason(rig, f"r{index}") == (End.FINISHED, "length") for index in (0, 1, 3))


def test_lost_sequences_are_computed_again():
    faults = ScriptedFaults({6: TickFaults(fail_after_rows=1, lose=True)})
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2), faults=faults)
    rig.serve(ask("a", 20, max_tokens=12), ask("b", 20, max_tokens=12))
    assert event_names.SLOT_REBUILD in rig.names()


def test_a_failed_operation_rebuilds_its_slot_alone():
    limits = Limits(n_seq_max=2, cache="prefix", cache_min_tokens=4)
    rig = Rig(limits, streams(2))
    rig.serve(ask("a", 40))
    turn = rig.ticks[-1].id + 1
    again = Rig(limits, streams(2), faults=ScriptedFaults({turn: TickFaults(fail_ops=frozenset(OpKind))}))
    again.serve(ask("a", 40))
    again.serve(ask("b", prompt(30, sum(b"a")) + prompt(5, 3)))
    assert (again.ends["b"].cached_tokens, again.ends["b"].computed_tokens) == (0, 35)  # the copy failed
    assert again.names().count(event_names.SLOT_REBUILD) == 1


def test_a_slot_that_cannot_be_rebuilt_gives_up():
    class NoClear:
        def at(self, tick_id):
            return TickFaults(fail_ops=frozenset({OpKind.CLEAR}))

    rig = Rig(Limits(n_seq_max=1, cache="none", rebuilds_max=3), streams(1), faults=NoClear())
    rig.accept(ask("a", 9))
    rig.step()
    for _ in range(20):
        rig.step()
    assert reason(rig, "a") == (End.FAILED, "pass_failed")


def test_a_tick_after_a_failed_one_is_void_and_done_again():
    faults = ScriptedFaults({5: TickFaults(fail_before=True)})
    rig = Rig(Limits(n_seq_max=2, cache="none"), paged(2, plan_ahead=1), faults=faults)
    rig.serve(ask("a", 6, max_tokens=20), ask("b", 6, max_tokens=20))
    assert PassFailure.VOID in [outcome.failure for outcome in rig.outcomes]


def test_no_room_gives_up_idle_entries_and_then_goes_on():
    faults = ScriptedFaults({tick: TickFaults(no_room=True) for tick in (12, 13)})
    rig = Rig(Limits(n_seq_max=2, cache="prefix", cache_min_tokens=4), unified(4), faults=faults)
    rig.serve(ask("a", 30, max_tokens=4))
    rig.serve(ask("b", 30, max_tokens=12), ask("c", 30, max_tokens=12))
    assert PassFailure.NO_ROOM in [outcome.failure for outcome in rig.outcomes]


def test_no_room_for_a_row_alone_in_its_tick_parks_somebody_who_waits_for_the_next():
    """Where ticks are in turns, a tick of one row does not mean that nobody else holds memory."""
    can = streams(2, mixed_batches=False, chunk_multiple=8)
    faults = ScriptedFaults({5: TickFaults(no_room=True)})
    rig = Rig(Limits(n_seq_max=2, cache="none", prefill_chunk=8), can, faults=faults)
    rig.accept(ask("a", 8, max_tokens=20))
    rig.run(until=lambda: "a" in rig.first_token_tick)
    rig.accept(ask("b", 80, max_tokens=4))
    rig.run()
    assert rig.outcomes[5].failure is PassFailure.NO_ROOM
    assert list(rig.ticks[5].counts) == [1]
    assert rig.ends["b"].preemptions == 1
    assert {end.end for end in rig.ends.values()} == {End.FINISHED}


def test_logprobs_and_the_like_are_passed_through():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("a", 3))
    planned = rig.scheduler.plan(rig.clock.now)
    rig.backend.launch(planned)
    outcome = rig.backend.collect()
    outcome.extras = {0: "logprobs"}
    assert rig.scheduler.commit(outcome, rig.clock.now).extras == {"a": "logprobs"}
