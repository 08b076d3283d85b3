"""The sequence ledger by example: adopt, copy, restore, rewind, evacuate, move, fail."""

from __future__ import annotations

import pytest

from stretto.core import event_names
from stretto.core.capabilities import Rewind, Share
from stretto.core.kv.ledger import PrefixKind
from stretto.core.ops import OpKind
from tests.unit.core.kv.rig import Bench, job, kinds
from tests.unit.core.rig import prompt, streams, unified

TEXT = prompt(60)


def test_an_idle_prefix_is_adopted_where_it_is():
    bench = Bench(streams(1))
    bench.close(bench.run(job("a", TEXT), 30))
    again = job("b", TEXT)
    slot = bench.open(again, bench.best(again))
    assert (slot.computed, kinds(bench.tick())) == (30, [])
    assert bench.holds(slot)


def test_a_longer_one_is_trimmed_at_the_divergence():
    bench = Bench(streams(1, snapshots=False))
    bench.close(bench.run(job("a", TEXT), 30))
    other = job("b", TEXT[:20] + prompt(9, 5))
    slot = bench.open(other, bench.best(other))
    assert (slot.computed, kinds(bench.tick())) == (20, ["TRIM"])
    assert bench.holds(slot)


def test_what_would_be_lost_is_saved_first():
    bench = Bench(streams(1))
    bench.close(bench.run(job("a", TEXT), 30))
    stranger = job("b", 20)
    slot = bench.open(stranger)
    assert kinds(bench.tick(rows=((slot, 20),))) == ["SAVE", "CLEAR"]
    bench.close(slot)
    again = job("c", TEXT)
    source = bench.best(again)
    assert (source.kind, source.length) == (PrefixKind.SNAPSHOT, 30)
    slot = bench.open(again, source)
    assert "RESTORE" in kinds(bench.tick())
    assert bench.holds(slot)


def test_what_is_not_worth_a_snapshot_is_not_saved():
    bench = Bench(streams(1), cache_min_tokens=31)
    bench.close(bench.run(job("a", TEXT), 30))
    bench.open(job("b", 20))
    assert kinds(bench.tick()) == ["CLEAR"]


def test_a_running_sequence_is_copied_and_goes_on():
    bench = Bench(streams(2))
    donor = bench.run(job("a", TEXT), 30)
    branch_job = job("b", TEXT[:25] + prompt(9, 5))
    source = bench.best(branch_job)
    assert (source.kind, source.length, source.slot) == (PrefixKind.RUNNING, 25, donor.index)
    branch = bench.open(branch_job, source)
    assert kinds(bench.tick(rows=((donor, 40), (branch, 30)))) == ["COPY"]
    assert bench.holds(donor)
    assert bench.holds(branch)


def test_nothing_is_read_from_a_copy_that_no_pass_has_carried_out():
    bench = Bench(streams(3))
    donor = bench.run(job("a", TEXT), 30)
    bench.open(job("b", TEXT[:25] + prompt(9, 5)), bench.best(job("b", TEXT[:25] + prompt(9, 5))))
    bench.tick()  # no rows: the copy waits
    pending = bench.ledger.table.copying[0][1]
    assert bench.ledger.table.is_copy_target(pending)
    assert not bench.ledger.table.can_save(bench.ledger.table.all[pending])
    bench.tick(rows=((donor, 31),))
    assert not bench.ledger.table.copying


def test_without_copies_a_running_donor_is_relayed_through_a_snapshot():
    bench = Bench(streams(2, share=Share.NONE, share_from_running=False))
    donor = bench.run(job("a", TEXT), 30)
    branch_job = job("b", TEXT[:30] + prompt(9, 5))
    branch = bench.open(branch_job, bench.best(branch_job))
    assert kinds(bench.tick(rows=((donor, 31), (branch, 35)))) == ["SAVE", "CLEAR", "RESTORE"]
    assert bench.holds(branch)


def test_a_hybrid_rewinds_only_to_a_checkpoint():
    bench = Bench(streams(1, rewind=Rewind.CHECKPOINT, state_bytes=10), cache="incremental")
    slot = bench.run(job("a", TEXT, boundaries=(20,)), 20)
    bench.ledger.checkpoint(slot, 20)
    assert "CHECKPOINT" in kinds(bench.tick(rows=((slot, 40),)))
    bench.close(slot)
    other = job("b", TEXT[:30] + prompt(9, 5))
    source = bench.best(other)
    assert (source.common, source.length) == (30, 20)
    slot = bench.open(other, source)
    assert "REWIND" in kinds(bench.tick(rows=((slot, 30),)))
    assert bench.holds(slot)


def test_a_hybrid_without_a_checkpoint_says_what_is_out_of_reach():
    bench = Bench(streams(1, rewind=Rewind.CHECKPOINT, state_bytes=10))
    bench.close(bench.run(job("a", TEXT), 40))
    match = bench.ledger.match(job("b", TEXT[:30] + prompt(9, 5)))
    assert (match.sources, match.out_of_reach) == ((), 30)


def test_a_window_rewinds_as_far_as_it_reaches():
    bench = Bench(streams(1, rewind=Rewind.WINDOW, rewind_tokens=8, snapshots=False))
    bench.close(bench.run(job("a", TEXT), 40))
    assert bench.best(job("b", TEXT[:33] + prompt(3, 5))).length == 33
    assert bench.ledger.match(job("b", TEXT[:31] + prompt(3, 5))).sources == ()


def test_a_failed_restore_is_not_tried_again():
    bench = Bench(streams(1))
    bench.close(bench.run(job("a", TEXT), 30))
    bench.close(bench.run(job("b", 20), 20))
    again = job("c", TEXT)
    slot = bench.open(again, bench.best(again))
    bench.tick(fail=frozenset({OpKind.RESTORE}))
    assert bench.rebuilt == [slot]
    assert (slot.computed, slot.planned) == (0, 0)
    assert [s.kind for s in bench.ledger.match(job("d", TEXT)).sources] == []
    assert "DROP" in kinds(bench.tick(rows=((slot, 20),)))
    assert bench.holds(slot)


def test_a_failed_save_is_no_entry():
    bench = Bench(streams(1))
    bench.close(bench.run(job("a", TEXT), 30))
    slot = bench.open(job("b", 20))
    bench.tick(rows=((slot, 20),), fail=frozenset({OpKind.SAVE}))
    assert bench.ledger.match(job("c", TEXT)).sources == ()
    assert bench.ledger.blobs() == sorted(bench.memory.blobs) == []


def test_private_content_is_for_its_owner_and_goes_with_it():
    bench = Bench(streams(2))
    bench.close(bench.run(job("a", TEXT), 30), private=True)
    assert bench.ledger.match(job("b", TEXT)).sources == ()
    assert bench.best(job("a", TEXT)).length == 30
    bench.ledger.forget("a")
    assert bench.ledger.match(job("a", TEXT)).sources == ()


def test_other_scopes_see_nothing():
    bench = Bench(streams(2))
    bench.close(bench.run(job("a", TEXT, tenant="one"), 30))
    assert bench.ledger.match(job("b", TEXT, tenant="two")).sources == ()
    assert bench.ledger.match(job("b", TEXT, tenant="one", cache_salt="s")).sources == ()
    assert bench.best(job("b", TEXT, tenant="one")).length == 30


def test_a_gap_that_lasts_is_closed_by_a_move():
    bench = Bench(streams(3, contiguous=True))
    slots = [bench.run(job(f"r{index}", 20, start=index), 10) for index in range(3)]
    bench.close(slots[1], 0)
    for _ in range(4):
        bench.ledger.compact([slots[0], slots[2]])
        bench.tick(rows=((slots[2], slots[2].computed + 1),))
    assert slots[2].sequence == 2
    bench.ledger.compact([slots[0], slots[2]])
    ops = bench.tick(rows=((slots[2], slots[2].computed + 1),))
    assert kinds(ops) == ["COPY", "CLEAR"]
    assert slots[2].sequence == 1
    assert bench.holds(slots[2])
    assert event_names.SEQUENCE_MOVED in [note.name for note in bench.ledger.notes]


def test_a_new_slot_takes_the_id_that_keeps_ids_together():
    bench = Bench(streams(4, contiguous=True))
    first = bench.run(job("a", 10), 5)
    bench.run(job("b", 10, start=2), 5)
    assert {slot.sequence for slot in bench.slots if slot.job} == {first.sequence, first.sequence + 1}


def test_a_stream_has_its_window_and_no_more():
    bench = Bench(streams(1, window=64))
    slot = bench.run(job("a", TEXT), 30)
    assert bench.ledger.reserve(slot, 64)
    assert not bench.ledger.reserve(slot, 65)
    assert bench.ledger.room_for(100) == 0


# --- unified -----------------------------------------------------------------------------------------


def test_idle_entries_make_room_in_a_unified_pool():
    bench = Bench(unified(3, 100), cache_min_tokens=200)
    bench.close(bench.run(job("a", TEXT), 24))
    slot = bench.run(job("b", 90), 80)
    assert event_names.CACHE_EVICTED in [note.name for note in bench.ledger.notes]
    assert not bench.ledger.reserve(slot, 101)
    assert bench.memory.free_rows() == 20


def test_idle_cells_are_capped_because_they_slow_every_tick():
    bench = Bench(unified(3, 100), cache_min_tokens=200)
    bench.close(bench.run(job("a", TEXT), 26))
    assert bench.ledger.match(job("b", TEXT)).sources == ()


def test_a_shared_prefix_takes_no_cells():
    bench = Bench(unified(3, 100))
    donor = bench.run(job("a", TEXT), 48)
    branch_job = job("b", TEXT[:40] + prompt(9, 5))
    source = bench.best(branch_job)
    assert bench.ledger.room_shared(branch_job, source) == 40
    branch = bench.open(branch_job, source)
    bench.tick(rows=((donor, 49), (branch, 41)))
    assert bench.memory.free_rows() == 100 - 49 - 1
    assert bench.holds(branch)


def test_relieve_gives_up_one_idle_entry():
    bench = Bench(unified(3, 100))
    bench.close(bench.run(job("a", TEXT), 20))
    assert bench.ledger.relieve()
    assert not bench.ledger.relieve()


@pytest.mark.parametrize("keep", [0, 10])
def test_nothing_is_left_when_nothing_is_kept(keep):
    bench = Bench(unified(2, 100))
    slot = bench.run(job("a", TEXT), 20)
    bench.close(slot, keep)
    while bench.ledger.relieve():
        pass
    bench.tick()
    assert bench.memory.free_rows() == bench.ledger.room_free() == 100
