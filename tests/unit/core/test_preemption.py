"""Slots are taken in two phases: for somebody more urgent, or when a time-out is over."""

from __future__ import annotations

import pytest

from stretto.core import notes
from stretto.core.limits import Limits, Preemption
from stretto.core.request import Priority
from stretto.core.slot import Where
from stretto.core.tick import End, PreemptReason
from tests.unit.core.rig import Rig, ask, streams

TIMEOUT_S = 30.0


def full(n_seq_max: int = 2, **limits) -> Rig:
    """Every slot runs background work that has made progress."""
    rig = Rig(Limits(n_seq_max=n_seq_max, **limits), streams(n_seq_max))
    rig.accept(
        *(
            ask(f"low{index}", 30, start=index, max_tokens=3000, priority=Priority.BACKGROUND)
            for index in range(n_seq_max)
        )
    )
    for _ in range(30):
        rig.step()
    return rig


def taken(rig: Rig) -> list[tuple[str, str, PreemptReason]]:
    return [(record.request_id, record.waiter_id, record.reason) for record in rig.preemptions]


def test_an_urgent_request_takes_a_slot_at_the_next_plan():
    rig = full()
    rig.accept(ask("urgent", 9, priority=Priority.URGENT))
    rig.step()
    assert taken(rig) == [("low1", "urgent", PreemptReason.PRIORITY)]
    assert rig.slot_of("urgent") is not None
    assert rig.job("low1").where is Where.PARKED
    assert rig.slot_of("low0") is not None, "the anchor stays"


def test_a_victim_goes_on_with_its_text_intact():
    rig = full()
    before = len(rig.output("low1"))
    rig.accept(ask("urgent", 9, priority=Priority.URGENT))
    rig.run(until=lambda: "urgent" in rig.ends and rig.slot_of("low1") is not None)
    rig.run(until=lambda: len(rig.output("low1")) > before + 5)
    assert rig.job("low1").parks == 1
    assert {notes.SLOT_PARKED, notes.SLOT_RESUMED} <= set(rig.names())


def test_nobody_gives_way_to_an_equal():
    rig = full()
    rig.accept(ask("peer", 9, priority=Priority.BACKGROUND))
    for _ in range(5):
        rig.step()
    assert rig.slot_of("peer") is None
    assert not rig.preemptions


def test_who_is_more_urgent_gets_the_slot_that_was_taken_whoever_has_the_ageing_turn():
    rig = full()
    rig.accept(*(ask(f"old{index}", 9, priority=Priority.BACKGROUND) for index in range(3)))
    for turn in range(6):
        before = len(rig.preemptions)
        rig.accept(ask(f"urgent{turn}", 9, priority=Priority.URGENT))
        rig.step()
        assert rig.slot_of(f"urgent{turn}") is not None or not rig.preemptions[before:]
        rig.run(until=lambda name=f"urgent{turn}": name in rig.ends)


def test_an_order_is_dropped_when_its_waiter_leaves():
    rig = waiting_for_a_slot(Preemption.RESUME)
    rig.clock.advance(TIMEOUT_S)
    rig.step()
    assert rig.scheduler.preemption_orders
    rig.scheduler.cancel("new")
    rig.step()
    rig.step()
    assert rig.slot_of("old") is not None or rig.job("old").where is Where.PARKED
    rig.run(until=lambda: rig.slot_of("old") is not None)
    assert rig.ends["new"].end is End.CANCELLED


def waiting_for_a_slot(preemption: Preemption) -> Rig:
    rig = Rig(
        Limits(n_seq_max=1, cache="incremental", preemption=preemption, cache_slot_timeout_s=TIMEOUT_S),
        streams(1),
    )
    rig.accept(ask("old", 9, max_tokens=3000))
    rig.run(until=lambda: "old" in rig.first_token_tick)
    rig.accept(ask("new", 9, max_tokens=3))
    rig.step()
    return rig


@pytest.mark.parametrize("preemption", Preemption)
def test_a_time_out_takes_the_longest_running_slot(preemption):
    rig = waiting_for_a_slot(preemption)
    rig.clock.advance(TIMEOUT_S - 1.0)
    rig.step()
    assert not rig.scheduler.preemption_orders
    rig.clock.advance(1.0)
    rig.step()
    rig.step()
    assert rig.slot_of("new") is not None
    assert {notes.PREEMPTING_SLOT, notes.PREEMPTED} <= set(rig.names())
    if preemption is Preemption.FAIL:
        assert (rig.ends["old"].end, rig.ends["old"].reason) == (End.FAILED, "preempted")
    else:
        rig.run(until=lambda: "new" in rig.ends and rig.slot_of("old") is not None)


def test_other_policies_take_no_slot_for_a_time_out():
    rig = Rig(Limits(n_seq_max=1, cache="prefix", cache_slot_timeout_s=1.0), streams(1))
    rig.accept(ask("old", 9, max_tokens=3000), ask("new", 9))
    for _ in range(5):
        rig.clock.advance(2.0)
        rig.step()
    assert rig.slot_of("old") is not None


def test_server_busy_when_every_slot_builds_for_the_whole_time():
    limits = Limits(n_seq_max=1, n_batch=2, prefill_chunk=1, cache="incremental", cache_slot_timeout_s=5.0)
    rig = Rig(limits, streams(1))
    rig.accept(ask("builds", 2000))
    rig.step()
    rig.accept(ask("waits", 9))
    rig.step()
    rig.clock.advance(5.0)
    rig.step()
    assert (rig.ends["waits"].end, rig.ends["waits"].reason) == (End.REJECTED, "server_busy")
    assert {notes.ALL_SLOTS_PENDING, notes.SERVER_BUSY} <= set(rig.names())
    assert rig.slot_of("builds") is not None


def test_time_in_which_every_slot_was_building_does_not_count():
    limits = Limits(n_seq_max=1, n_batch=64, cache="incremental", cache_slot_timeout_s=5.0)
    rig = Rig(limits, streams(1))
    rig.accept(ask("builds", 600, max_tokens=2000))
    rig.step()
    rig.accept(ask("waits", 9))
    rig.step()
    rig.clock.advance(4.0)
    rig.run(until=lambda: "builds" in rig.first_token_tick)
    rig.step()
    assert notes.SLOT_AVAILABLE in rig.names()
    rig.clock.advance(4.0)
    rig.step()
    rig.step()
    assert rig.slot_of("builds") is not None, "four seconds of waiting, not eight"
