"""Streams take turns where there are more of them than slots: nobody waits long, nobody's text changes."""

from __future__ import annotations

import pytest

from stretto.core import event_names
from stretto.core.capabilities import Rewind
from stretto.core.limits import Limits
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.core.request import Priority
from stretto.core.slot import Status
from stretto.core.swap_cost import CREDIT_S
from stretto.core.time_slicing import ENDING_TOKENS, PAUSE_MAX_S, SHORT_SLICE
from tests.unit.core.rig import Rig, ask, paged, streams

SLOTS = 3


def busy(written: int, *, max_tokens: int = 400, can=None, priority=Priority.DEFAULT, **limits) -> Rig:
    """Every slot runs a stream, the first of which has written so many tokens."""
    rig = Rig(Limits(n_seq_max=SLOTS, **limits), can or streams(SLOTS))
    rig.accept(
        *(
            ask(f"s{at}", 20, start=at, max_tokens=max_tokens, streamed=True, priority=priority)
            for at in range(SLOTS)
        )
    )
    rig.run(until=lambda: len(rig.output("s0")) >= written)
    return rig


def newcomer(name: str = "new", **more):
    return ask(name, 20, **{"max_tokens": 30, "streamed": True} | more)


def pauses(rig: Rig) -> dict[str, float]:
    """The longest time without a token, for each stream that runs or is preempted."""
    last: dict[str, tuple[int, float]] = {}
    longest: dict[str, float] = {}

    def look(_):
        for name, witness in rig.witnesses.items():
            count, since_s = last.get(name, (0, rig.clock.now))
            if name in rig.ends:
                continue
            if len(witness.output) > count:
                last[name] = (len(witness.output), rig.clock.now)
            if count:
                longest[name] = max(longest.get(name, 0.0), rig.clock.now - since_s)

    rig.after_plan.append(look)
    return longest


def test_a_newcomer_has_the_slot_of_a_stream_that_had_a_short_turn():
    rig = busy(SHORT_SLICE + 4)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is not None
    assert rig.slot_of("s0") is not None, "the oldest stays"
    (preempted,) = rig.state.queue.preempted
    assert preempted.id in ("s1", "s2")
    assert preempted.slice_preemptions == preempted.preemptions == 1
    assert event_names.TIME_SLICED in rig.names()
    rig.run()
    assert all(end.end.value == "finished" for end in rig.ends.values())


def test_nobody_gives_up_a_slot_before_a_short_turn():
    rig = busy(SHORT_SLICE - 6)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is None
    rig.run(until=lambda: rig.slot_of("new") is not None)
    assert SHORT_SLICE <= len(rig.output(rig.state.queue.preempted[0].id)) <= SHORT_SLICE + 2


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        (newcomer(streamed=False), {}),
        (newcomer(priority=Priority.BACKGROUND), {}),
        (newcomer(), {"slice_tokens": 0}),
    ],
    ids=["nobody reads along", "background", "switched off"],
)
def test_who_takes_no_turns_waits(request_, limits):
    rig = busy(100, **limits)
    rig.accept(request_)
    for _ in range(50):
        rig.step()
    assert rig.slot_of("new") is None
    assert not rig.state.queue.preempted


def test_a_turn_is_never_taken_from_somebody_more_urgent():
    rig = busy(100, priority=Priority.URGENT)
    rig.accept(newcomer())
    for _ in range(50):
        rig.step()
    assert rig.slot_of("new") is None


def test_streams_share_the_slots_and_none_stands_still_for_long():
    rig = busy(SHORT_SLICE, max_tokens=600)
    longest = pauses(rig)
    rig.accept(*(newcomer(f"n{at}", start=40 + at, max_tokens=600) for at in range(SLOTS)))
    rig.run()
    ends = rig.ends.values()
    assert {end.reason for end in ends} == {"length"}
    assert sum(end.preemptions for end in ends) > 10, "they took many turns"
    assert max(longest.values()) < 2 * PAUSE_MAX_S
    waits = [rig.ends[f"n{at}"].ttft_s for at in range(SLOTS)]
    alone = rig.ends["s0"].duration_s
    assert max(waits) < alone / 10, "nobody waited for a whole answer"


def test_no_more_streams_are_parked_than_there_are_slots():
    rig = busy(SHORT_SLICE, max_tokens=300, queue_depth=9)
    most = []
    rig.after_plan.append(lambda _: most.append(len(rig.state.queue.preempted)))
    rig.accept(*(newcomer(f"n{at}", start=40 + at, max_tokens=300) for at in range(4 * SLOTS)))
    rig.run()
    assert max(most) == SLOTS


def test_turns_are_longer_where_changing_takes_long():
    """Saving and restoring a state takes a tenth of the time at most."""
    slow = streams(SLOTS, bytes_per_token=1000, snapshot_bytes_per_s=1.6e7)
    rig = busy(SHORT_SLICE + 4, max_tokens=2000, can=slow, cache_ram_bytes=1 << 30)
    rig.accept(newcomer())
    rig.run(until=lambda: rig.slot_of("new") is not None)
    (preempted,) = rig.state.queue.preempted
    assert rig.clock.now - preempted.arrival_s > 10 * SLOTS * 2 * preempted.high_water * 1000 / 1.6e7
    assert len(rig.output(preempted.id)) > 2 * SHORT_SLICE


def test_swaps_take_a_fiftieth_of_the_time():
    """However many streams arrive, and however short the slices could be."""
    dear = streams(SLOTS, bytes_per_token=1000, snapshot_bytes_per_s=4e7)  # 200 tokens: 10 ms to swap
    rig = busy(SHORT_SLICE + 4, max_tokens=800, can=dear, cache_ram_bytes=1 << 30, queue_depth=9)
    began_s = rig.clock.now
    spent_s: list[float] = []
    preempt = rig.state.preempt

    def counted(slot, *reasons, **more):
        spent_s.append(rig.state.swap_s(slot, kept=True))
        return preempt(slot, *reasons, **more)

    rig.state.preempt = counted
    rig.accept(*(newcomer(f"n{at}", start=40 + at, max_tokens=800) for at in range(2 * SLOTS)))
    rig.run()
    assert len(spent_s) > SLOTS
    assert sum(spent_s) <= 0.02 * (rig.clock.now - began_s) + CREDIT_S + max(spent_s)


def test_no_swap_where_a_slot_is_free_sooner_than_it_would_pay_off():
    """All streams wait for a swap: where the slots are free soon anyway it delays more than it gains."""
    dear = streams(SLOTS, bytes_per_token=1000, snapshot_bytes_per_s=1e6)
    rig = busy(SHORT_SLICE + 4, max_tokens=SHORT_SLICE + 14, can=dear, cache_ram_bytes=1 << 30)
    for slot in rig.state.active:
        slot.started_s -= 100.0  # their slices were long enough
    tick_s = rig.state.cost.decode_s(SLOTS, 100)
    assert 10 * tick_s < SLOTS * rig.state.swap_s(rig.state.active[1], kept=True)
    rig.accept(newcomer())
    rig.run()
    assert all(end.preemptions == 0 for end in rig.ends.values())


def test_swaps_cost_what_they_were_seen_to_cost():
    rig = busy(SHORT_SLICE)
    cost, slot = rig.state.swap_cost, rig.state.active[0]
    before_s = rig.state.swap_s(slot, kept=True)
    ops = (KvOp(OpKind.SAVE), KvOp(OpKind.CLEAR), KvOp(OpKind.RESTORE))
    seen = (OpResult(ok=True, bytes=1000, seconds=1.0), OpResult(ok=True), OpResult(ok=False, seconds=9.0))
    for _ in range(100):
        cost.observe(ops, seen)
    after_s = rig.state.swap_s(slot, kept=True)
    assert after_s > before_s
    assert cost.swap_s(1000) == pytest.approx(1.0, rel=0.01)


def test_without_snapshots_nobody_changes_places():
    """What was said would have to be computed again, and might round otherwise."""
    rig = busy(SHORT_SLICE + 4, can=streams(SLOTS, snapshots=False, share_from_running=False))
    rig.accept(newcomer())
    for _ in range(50):
        rig.step()
    assert rig.slot_of("new") is None


def test_nothing_changes_places_where_memory_is_short():
    rig = busy(SHORT_SLICE + 4, can=paged(SLOTS, pages=12, page_tokens=16), headroom_tokens=64)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is None
    rig.run()


def test_who_was_overtaken_has_the_next_free_slot():
    """A request that nobody reads along came before: the stream that had a turn comes back behind it."""
    rig = busy(SHORT_SLICE + 4, max_tokens=60)
    rig.accept(ask("silent", 20, max_tokens=5), newcomer(max_tokens=200))
    rig.step()
    assert rig.slot_of("new") is not None
    rig.run(until=lambda: rig.job("new").status is Status.PREEMPTED or "silent" in rig.ends)
    assert "silent" in rig.ends
    rig.run()


def test_having_had_a_turn_does_not_shield_from_somebody_urgent():
    rig = busy(SHORT_SLICE, max_tokens=2000, priority=Priority.BACKGROUND)
    low = [rig.job(f"s{at}") for at in (1, 2)]
    for job in low:
        job.preemptions = job.slice_preemptions = rig.limits.priority_preemptions_max
    rig.accept(ask("urgent", 9, priority=Priority.URGENT))
    rig.step()
    assert rig.slot_of("urgent") is not None


def test_who_is_about_to_end_keeps_the_slot():
    rig = busy(SHORT_SLICE, max_tokens=SHORT_SLICE + ENDING_TOKENS - 1)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is None
    assert not rig.state.queue.preempted


def test_a_pool_that_holds_the_running_alone_is_not_shared_by_more():
    """Parked pages would be evicted and computed again, turn after turn."""
    rig = Rig(Limits(n_seq_max=4), paged(4, pages=340, page_tokens=16))
    rig.accept(*(ask(f"s{at}", 800, start=at, max_tokens=400, streamed=True) for at in range(8)))
    rig.run()
    rows = sum(tick.rows - tick.decode_rows for tick in rig.ticks)
    assert rows < 1.25 * 8 * 800


def test_who_nobody_reads_along_takes_a_slot_back_too():
    rig = Rig(Limits(n_seq_max=2), streams(2))
    rig.accept(ask("oldest", 20, max_tokens=3000, streamed=True), ask("silent", 20, max_tokens=100))
    rig.run(until=lambda: len(rig.output("silent")) >= 60)
    rig.accept(newcomer(max_tokens=3000))
    rig.run(until=lambda: "silent" in rig.ends)
    assert rig.ends["silent"].preemptions == 1
    assert not {"oldest", "new"} & set(rig.ends)


def test_one_that_cannot_come_back_does_not_keep_the_others_out():
    rig = Rig(Limits(n_seq_max=3), streams(3))
    rig.accept(
        ask("oldest", 20, max_tokens=2000, streamed=True),
        ask("d1", 20, max_tokens=2000, streamed=True),
        ask("low", 20, max_tokens=2000, streamed=True, priority=Priority.BACKGROUND),
    )
    rig.run(until=lambda: len(rig.output("oldest")) >= 30)
    longest = pauses(rig)
    rig.accept(*(newcomer(name, max_tokens=2000) for name in ("d2", "d3")))
    rig.run(until=lambda: "oldest" in rig.ends)
    assert rig.job("low").status is Status.PREEMPTED
    assert all(longest[name] < 1.5 * PAUSE_MAX_S for name in ("d1", "d2", "d3"))


def test_one_that_must_wait_for_a_cache_does_not_hold_up_the_newcomers_behind_it():
    can = streams(SLOTS, rewind=Rewind.CHECKPOINT, state_bytes=50)
    rig = busy(SHORT_SLICE + 4, can=can, cache="incremental", cache_min_tokens=4)
    conversation = [*rig.witnesses["s1"].request.tokens, 7, 8, 9]
    rig.accept(ask("again", conversation, streamed=True, boundaries=(20,)), newcomer())
    for _ in range(10):
        rig.step()
    assert rig.first_token_tick.get("new") is not None


@pytest.mark.parametrize("clients", [6, 8])
def test_streams_without_end_starve_nobody(clients):
    """A request of the same class, and one in the background, among streams that always want more."""
    rig = Rig(Limits(n_seq_max=3, queue_depth=16), streams(3))
    number = 0

    def feed(_):
        nonlocal number
        while sum(job.request.streamed for job in rig.state.jobs.values()) < clients:
            rig.accept(newcomer(f"s{number}", start=number, max_tokens=100 + number * 37 % 60))
            number += 1

    feed(None)
    rig.after_plan.append(feed)
    for _ in range(40):
        rig.step()
    rig.accept(ask("low", 20, max_tokens=5, priority=Priority.BACKGROUND), ask("silent", 20, max_tokens=5))
    rig.run(until=lambda: {"low", "silent"} <= set(rig.ends))
    assert len(rig.ends) < 30


def test_a_turn_of_somebody_else_does_not_begin_a_slot_time_out_anew():
    waits = {}
    for slice_tokens in (0, 64):
        rig = Rig(
            Limits(n_seq_max=4, cache="incremental", cache_slot_timeout_s=5.0, slice_tokens=slice_tokens),
            streams(4),
        )
        rig.accept(*(newcomer(f"s{at}", start=at, max_tokens=3000) for at in range(5)))
        rig.run(until=lambda rig=rig: len(rig.output("s0")) > 40)
        rig.accept(*(ask(f"q{at}", 20, max_tokens=5) for at in range(3)))
        rig.run(until=lambda rig=rig: {"q0", "q1", "q2"} <= set(rig.ends))
        waits[slice_tokens] = max(rig.ends[f"q{at}"].queue_wait_s for at in range(3))
    assert waits[64] < 1.5 * waits[0]


def test_turns_keep_the_tenants_shares():
    """One tenant sends five times as much: each still writes a third."""
    rig = Rig(Limits(n_seq_max=4, queue_depth=16), streams(4))
    for tenant, count in (("heavy", 30), ("b", 6), ("c", 6)):
        rig.accept(
            *(ask(f"{tenant}{at}", 20, max_tokens=100, streamed=True, tenant=tenant) for at in range(count))
        )
    rig.run(until=lambda: all(f"b{at}" in rig.ends for at in range(5)))
    written = {
        tenant: sum(len(w.output) for w in rig.witnesses.values() if w.request.tenant == tenant)
        for tenant in ("heavy", "b", "c")
    }
    jain = sum(written.values()) ** 2 / (3 * sum(tokens**2 for tokens in written.values()))
    assert jain >= 0.95, written


def test_a_server_that_is_never_full_keeps_no_list_of_streamed_requests():
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2), check=False)
    for at in range(300):
        rig.serve(newcomer(f"r{at}", max_tokens=1))
    assert len(rig.state.queue._streaming) <= 65
