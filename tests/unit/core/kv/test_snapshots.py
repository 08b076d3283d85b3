"""Snapshots: bounded by bytes and by a share of the tick, and real only once their operation succeeded."""

from __future__ import annotations

from stretto.core.kv.ledger import PrefixKind
from stretto.core.ops import OpKind
from stretto.core.slot import Job, Slot, Status
from tests.unit.core.kv.rig import Bench, job, kinds
from tests.unit.core.rig import prompt, streams

TEXT = prompt(60)


def filled(count: int, can, **limits) -> Bench:
    """So many idle sequences with 20 tokens each."""
    bench = Bench(can, **limits)
    slots = [bench.open(job(f"r{index}", 30, start=index)) for index in range(count)]
    bench.tick(rows=tuple((slot, 20) for slot in slots))
    for slot in slots:
        bench.close(slot)
    return bench


def test_a_tick_saves_only_so_many_bytes():
    """At 1,000 bytes a second and a target of 0.05 s these are two snapshots of 20 bytes, not three."""
    bench = filled(3, streams(3, bytes_per_token=1, snapshot_bytes_per_s=1000.0))
    for index in range(3):
        bench.open(job(f"new{index}", 30, start=10 + index))
    assert kinds(bench.tick()).count("SAVE") == 2


def preempted(bench: Bench, slot: Slot) -> Job:
    """The slot's request leaves it and will come back."""
    leaving = slot.job
    leaving.status, leaving.preemptions = Status.PREEMPTED, leaving.preemptions + 1
    bench.close(slot)
    return leaving


def test_what_a_parked_request_left_is_saved_however_short_it_is_and_whatever_it_takes():
    """Computed again it would round otherwise, and its text could change."""
    bench = Bench(streams(3, bytes_per_token=1, snapshot_bytes_per_s=1000.0), cache_min_tokens=100)
    slots = [bench.open(job(f"r{index}", 30, start=index)) for index in range(3)]
    bench.tick(rows=tuple((slot, 20) for slot in slots))
    left = [preempted(bench, slot) for slot in slots[:2]]
    bench.close(slots[2])
    others = [bench.open(job(f"new{index}", 30, start=10 + index)) for index in range(3)]
    assert kinds(bench.tick(rows=tuple((slot, 5) for slot in others))).count("SAVE") == 2
    bench.close(others[0])
    assert bench.best(left[0]).length == 20
    bench.open(left[0], bench.best(left[0]))
    assert {snapshot.prefix.reserved_for for snapshot in bench.ledger.store} == {"", "r1"}


def test_a_parked_request_comes_back_in_the_tick_that_saves_what_it_left():
    bench = Bench(streams(2), cache_min_tokens=100)
    slots = [bench.open(job(f"r{index}", 30, start=index)) for index in range(2)]
    bench.tick(rows=tuple((slot, 20) for slot in slots))
    left = [preempted(bench, slot) for slot in slots]
    new = bench.open(job("new", 30, start=9))
    gone = left[new.sequence]
    again = bench.open(gone, bench.best(gone))
    assert again.computed == 20
    assert kinds(bench.tick(rows=((new, 5), (again, 25)))) == ["SAVE", "SAVE", "CLEAR", "CLEAR", "RESTORE"]
    assert again.computed == 25


def test_a_twin_that_runs_is_no_substitute_for_what_a_parked_request_left():
    """It ends, and under some policies nobody may use it."""
    bench = Bench(streams(2), cache="none")
    slots = [bench.open(job(f"r{index}", 30, start=1)) for index in range(2)]
    bench.tick(rows=((slots[0], 20), (slots[1], 25)))
    preempted(bench, slots[0])
    bench.open(job("new", 30, start=9))
    assert kinds(bench.tick()) == ["SAVE", "CLEAR"]


def test_what_parked_requests_come_back_for_is_given_up_last():
    bench = Bench(streams(2, bytes_per_token=10), cache_ram_bytes=450)
    first = preempted(bench, bench.run(job("first", 30, start=1), 20))
    for index in range(4):
        bench.close(bench.run(job(f"other{index}", 30, start=5 + index), 20))
    assert bench.best(first).length == 20
    bench.ledger.forget("first")
    assert not any(snapshot.prefix.reserved_for for snapshot in bench.ledger.store)


def test_the_arena_never_overflows():
    bench = filled(3, streams(3, bytes_per_token=10), cache_ram_bytes=450)
    for index in range(3):
        bench.open(job(f"new{index}", 30, start=10 + index))
    assert kinds(bench.tick()).count("SAVE") == 2
    assert bench.ledger.store.bytes_used <= 450


def test_no_arena_no_snapshots():
    bench = filled(1, streams(1, bytes_per_token=10), cache_ram_bytes=0)
    bench.open(job("new", 30, start=9))
    assert kinds(bench.tick()) == ["CLEAR"]


def test_a_snapshot_is_matched_only_after_it_was_written():
    bench = filled(1, streams(1))
    slot = bench.open(job("new", 30, start=9))
    match = bench.ledger.match(job("again", 30, start=0))
    assert not [s for s in match.sources if s.kind is PrefixKind.SNAPSHOT]
    bench.tick(rows=((slot, 10),))
    match = bench.ledger.match(job("again", 30, start=0))
    assert [s.length for s in match.sources if s.kind is PrefixKind.SNAPSHOT] == [20]


def test_a_system_prompt_is_saved_at_its_mark_and_once():
    bench = Bench(streams(2), cache="system_prompt")
    for name in ("a", "b"):
        made = job(name, TEXT, boundaries=(20,))
        assert bench.ledger.checkpoint_at(made, (20,)) == (20,)
        slot = bench.run(made, 20)
        bench.ledger.checkpoint(slot, 20)
        ops = kinds(bench.tick(rows=((slot, 40),)))
        assert ops.count("SAVE") == (1 if name == "a" else 0)


def test_a_failed_drop_is_tried_again():
    bench = filled(2, streams(2, bytes_per_token=10), cache_ram_bytes=250)
    for index in range(2):
        slot = bench.open(job(f"new{index}", 30, start=10 + index))
        bench.tick(rows=((slot, 20),))
    bench.close(next(slot for slot in bench.slots if slot.job is not None))
    bench.open(job("last", 30, start=20))
    assert "DROP" in kinds(bench.tick(fail=frozenset({OpKind.DROP})))
    assert "DROP" in kinds(bench.tick())
    assert sorted(bench.memory.blobs) == bench.ledger.blobs()
