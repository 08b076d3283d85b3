"""Slots are taken in two phases: for somebody more urgent, or when a time-out is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.core import event_names
from stretto.core.limits import CACHE_POLICIES, Limits, Preemption
from stretto.core.request import Priority
from stretto.core.slot import Status
from stretto.core.tick import End, PreemptReason
from tests.unit.core.rig import Rig, ask, paged, streams

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
    assert rig.job("low1").status is Status.PREEMPTED
    assert rig.slot_of("low0") is not None, "the oldest one stays where another will do"


def test_a_victim_goes_on_with_its_text_intact():
    rig = full()
    before = len(rig.output("low1"))
    rig.accept(ask("urgent", 9, priority=Priority.URGENT))
    rig.run(until=lambda: "urgent" in rig.ends and rig.slot_of("low1") is not None)
    rig.run(until=lambda: len(rig.output("low1")) > before + 5)
    assert rig.job("low1").preemptions == 1
    assert {event_names.SLOT_PREEMPTED, event_names.SLOT_RESUMED} <= set(rig.names())


def test_nobody_gives_way_to_an_equal():
    rig = full()
    rig.accept(ask("peer", 9, priority=Priority.BACKGROUND))
    for _ in range(5):
        rig.step()
    assert rig.slot_of("peer") is None
    assert not rig.preemptions


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_an_urgent_request_does_not_wait_for_a_background_answer(n_seq_max):
    """Also where the only slot, or every slot, runs less urgent work: the oldest one yields, too."""
    rig = full(n_seq_max)
    for turn in range(8):
        names = [f"urgent{turn}-{index}" for index in range(n_seq_max)]
        arrived = len(rig.ticks)
        rig.accept(*(ask(name, 9, priority=Priority.URGENT) for name in names))
        rig.run(until=lambda names=names: all(name in rig.ends for name in names))
        waits = [rig.first_token_tick[name] - arrived for name in names]
        assert max(waits) <= 4 * rig.limits.priority_preempt_min_tokens
        assert turn or max(waits) <= 3
        for _ in range(100):
            rig.step()


def test_four_seconds_of_background_hold_an_urgent_request_up_for_a_few_ticks():
    """n_seq_max 1, a tick takes 20 ms: 200 tokens of background are 4 s."""
    latency = LatencyModel(a_s=0.02, b_s=0, c_s=0, beta_s=0, gamma_s=0)
    rig = Rig(Limits(n_seq_max=1), streams(1), latency=latency)
    began_s = rig.clock.now
    rig.accept(ask("low", 30, max_tokens=200, priority=Priority.BACKGROUND))
    rig.run(until=lambda: len(rig.output("low")) == 20)
    asked_s = rig.clock.now
    rig.accept(ask("urgent", 9, max_tokens=10, priority=Priority.URGENT))
    rig.run(until=lambda: "urgent" in rig.first_token_tick)
    assert rig.clock.now - asked_s <= 0.06
    rig.run()
    assert rig.ends["low"].end is End.FINISHED
    assert rig.clock.now - began_s < 4.5


def test_background_advances_under_a_steady_stream_of_urgent_requests():
    """An urgent request always waits; after every fourth admission a preempted background request resumes."""
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("low", 30, max_tokens=300, priority=Priority.BACKGROUND))
    rig.run(until=lambda: len(rig.output("low")) == 5)
    count = 0

    def busy() -> bool:
        nonlocal count
        while rig.state.queue.size < 2:
            count += 1
            rig.accept(ask(f"urgent{count}", 9, start=count, max_tokens=6, priority=Priority.URGENT))
        return "low" in rig.ends

    rig.run(until=busy)
    assert rig.ends["low"].end is End.FINISHED
    assert count <= 4 * (300 / (4 * rig.limits.priority_preempt_min_tokens) + 8), (
        "it advances with every turn"
    )


def test_an_urgent_prompt_takes_memory_from_less_urgent_requests_as_few_as_do():
    rig = Rig(Limits(n_seq_max=4, headroom_tokens=16), paged(4, pages=64, page_tokens=16, window=1024))
    sizes = {"small": 64, "big": 500, "default": 200}
    for name, size in sizes.items():
        priority = Priority.DEFAULT if name == "default" else Priority.BACKGROUND
        rig.accept(ask(name, size, max_tokens=100, priority=priority))
    rig.run(until=lambda: len(rig.first_token_tick) == 3)
    rig.accept(ask("urgent", 400, priority=Priority.URGENT))
    rig.run(until=lambda: "urgent" in rig.first_token_tick)
    assert taken(rig) == [("big", "urgent", PreemptReason.PRIORITY)]
    rig.run()
    assert all(end.end is End.FINISHED for end in rig.ends.values())


def test_an_order_is_dropped_when_its_waiter_leaves():
    rig = waiting_for_a_slot(Preemption.RESUME)
    rig.clock.advance(TIMEOUT_S)
    rig.step()
    assert rig.scheduler.planned_preemptions
    rig.scheduler.cancel("new")
    rig.step()
    rig.step()
    assert rig.slot_of("old") is not None or rig.job("old").status is Status.PREEMPTED
    rig.run(until=lambda: rig.slot_of("old") is not None)
    assert rig.ends["new"].end is End.CANCELLED


def waiting_for_a_slot(preemption: Preemption, cache: str = "incremental") -> Rig:
    rig = Rig(
        Limits(n_seq_max=1, cache=cache, preemption=preemption, cache_slot_timeout_s=TIMEOUT_S),
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
    assert not rig.scheduler.planned_preemptions
    rig.clock.advance(1.0)
    rig.step()
    rig.step()
    assert rig.slot_of("new") is not None
    assert {event_names.PREEMPTING_SLOT, event_names.PREEMPTED} <= set(rig.names())
    if preemption is Preemption.FAIL:
        assert (rig.ends["old"].end, rig.ends["old"].reason) == (End.FAILED, "preempted")
    else:
        rig.run(until=lambda: "new" in rig.ends and rig.slot_of("old") is not None)


@pytest.mark.parametrize("cache", CACHE_POLICIES)
@pytest.mark.parametrize("preemption", Preemption)
def test_a_time_out_works_under_every_policy(cache, preemption):
    rig = waiting_for_a_slot(preemption, cache=cache)
    rig.clock.advance(TIMEOUT_S)
    rig.run(until=lambda: "new" in rig.ends)
    assert rig.ends["new"].end is End.FINISHED
    assert [(r.request_id, r.waiter_id, r.reason, r.resumes) for r in rig.preemptions] == [
        ("old", "new", PreemptReason.TIMEOUT, preemption is Preemption.RESUME)
    ]
    rig.run()
    ended = End.FINISHED if preemption is Preemption.RESUME else End.FAILED
    assert rig.ends["old"].end is ended


def test_a_resumed_victim_has_its_whole_time_again():
    rig = waiting_for_a_slot(Preemption.RESUME, cache="prefix")
    rig.clock.advance(TIMEOUT_S)
    rig.run(until=lambda: "new" in rig.ends)
    rig.accept(ask("next", 9, max_tokens=3))
    rig.run(until=lambda: rig.slot_of("old") is not None)
    rig.clock.advance(TIMEOUT_S - 1.0)
    for _ in range(5):
        rig.step()
    assert rig.slot_of("old") is not None
    rig.clock.advance(1.0)
    rig.run(until=lambda: "next" in rig.ends)


def test_a_time_out_takes_no_slot_of_a_more_urgent_request():
    rig = Rig(Limits(n_seq_max=1, cache_slot_timeout_s=1.0), streams(1))
    rig.accept(ask("old", 9, max_tokens=100))
    rig.run(until=lambda: "old" in rig.first_token_tick)
    rig.accept(ask("new", 9, priority=Priority.BACKGROUND))
    for _ in range(20):
        rig.clock.advance(1.0)
        rig.step()
    assert not rig.preemptions


def test_time_outs_keep_no_more_requests_aside_than_there_are_slots():
    rig = Rig(Limits(n_seq_max=2, cache_slot_timeout_s=1.0, queue_depth=8), streams(2))
    rig.accept(*(ask(f"long{index}", 9, start=index, max_tokens=2000) for index in range(10)))
    for _ in range(200):
        rig.clock.advance(0.5)
        rig.step()
        assert len(rig.state.queue.preempted) <= 2
    assert rig.preemptions


def test_a_time_out_waits_where_putting_aside_is_dear():
    """A state that takes 0.3 s to save and as long to restore, in a slot alone: 20 s, not one."""
    can = replace(streams(1), bytes_per_token=1000, snapshot_bytes_per_s=1e5)
    rig = Rig(Limits(n_seq_max=1, cache_slot_timeout_s=1.0), can)
    rig.accept(ask("old", 28, max_tokens=2000))
    rig.run(until=lambda: len(rig.output("old")) == 2)
    started_s = rig.slot_of("old").started_s
    rig.accept(ask("new", 9))
    for _ in range(100):
        rig.clock.advance(2.0)
        rig.step()
        if rig.preemptions:
            break
    assert rig.preemptions
    held_s = rig.clock.now - started_s
    spent_s = 2 * 1000 * len(rig.job("old").known) / 1e5
    assert spent_s / held_s <= 0.032


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
    assert {event_names.ALL_SLOTS_PENDING, event_names.SERVER_BUSY} <= set(rig.names())
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
    assert event_names.SLOT_AVAILABLE in rig.names()
    rig.clock.advance(4.0)
    rig.step()
    rig.step()
    assert rig.slot_of("builds") is not None, "four seconds of waiting, not eight"
