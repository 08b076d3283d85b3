"""The page ledger by example: shared pages, copies on write, fences, eviction."""

from __future__ import annotations

from stretto.core import event_names
from stretto.core.kv.ledger import PrefixKind
from stretto.core.kv.pages import PageLedger
from stretto.core.limits import Limits
from stretto.core.ops import OpKind, OpResult
from stretto.core.slot import Job, Slot
from tests.unit.core.kv.rig import job
from tests.unit.core.rig import paged, prompt

TEXT = prompt(40)
SIZE = 4


class Pages:
    def __init__(self, pages: int = 20, **limits) -> None:
        self.ledger = PageLedger(
            paged(3, pages=pages, page_tokens=SIZE),
            Limits(**{"n_seq_max": 3, "cache_min_tokens": 1} | limits),
        )
        self.slots = [Slot(index) for index in range(3)]
        self.tick_id = 0

    def open(self, made: Job) -> Slot:
        slot = next(slot for slot in self.slots if slot.job is None)
        sources = self.ledger.match(made).sources
        assert self.ledger.open(slot, made, sources[0] if sources else None)
        slot.job, slot.known = made, made.known
        return slot

    def run(self, made: Job, length: int) -> Slot:
        slot = self.open(made)
        assert self.ledger.reserve(slot, length)
        self.tick()
        slot.computed = slot.planned = length
        self.ledger.committed(slot)
        self.ledger.check()
        return slot

    def tick(self, *, ok: bool = True):
        ops = self.ledger.take_ops(self.tick_id)
        settled = self.ledger.settle(self.tick_id, [OpResult(ok=ok)] * len(ops), ran=True)
        self.tick_id += 1
        self.ledger.check()
        return ops, settled

    def close(self, slot: Slot, keep: int | None = None, *, private: bool = False) -> None:
        self.ledger.close(slot, slot.computed if keep is None else keep, private=private)
        slot.clear()
        self.ledger.check()


def test_equal_prompts_share_whole_pages():
    pages = Pages()
    pages.run(job("a", TEXT), 24)
    slot = pages.open(job("b", TEXT[:16] + prompt(9, 8)))
    assert (slot.computed, slot.room) == (16, 16)
    assert pages.ledger.room_free() == 20 - 6


def test_part_of_a_page_is_copied_on_write():
    pages = Pages()
    pages.run(job("a", TEXT), 24)
    slot = pages.open(job("b", TEXT[:18] + prompt(9, 8)))
    ops, _ = pages.tick()
    assert (slot.computed, slot.room) == (18, 20)
    assert [(op.kind, op.length) for op in ops] == [(OpKind.COPY_PAGES, 2)]


def test_a_failed_copy_rebuilds_the_slot_alone():
    pages = Pages()
    donor = pages.run(job("a", TEXT), 24)
    slot = pages.open(job("b", TEXT[:18] + prompt(9, 8)))
    _, settled = pages.tick(ok=False)
    assert settled.rebuild == [slot]
    assert (slot.computed, slot.room, donor.computed) == (0, 0, 24)


def test_freed_pages_keep_their_tokens_until_they_are_needed():
    pages = Pages(pages=10)
    pages.close(pages.run(job("a", TEXT), 24))
    assert pages.ledger.room_free() == 10
    assert pages.ledger.match(job("b", TEXT)).sources[0].length == 24
    pages.run(job("c", 40, start=9), 32)
    assert pages.ledger.match(job("b", TEXT)).sources[0].length <= 8, "the end of a prompt goes first"
    assert event_names.CACHE_EVICTED in [note.name for note in pages.ledger.notes]


def test_never_the_whole_prompt():
    pages = Pages()
    pages.close(pages.run(job("a", TEXT), 24))
    source = pages.ledger.match(job("b", TEXT[:24])).sources[0]
    assert (source.kind, source.length) == (PrefixKind.PAGES, 23)


def test_scopes_do_not_meet():
    pages = Pages()
    pages.close(pages.run(job("a", TEXT, tenant="one"), 24))
    assert pages.ledger.match(job("b", TEXT, tenant="two")).sources == ()


def test_private_pages_are_for_their_owner():
    pages = Pages(cache="none")
    pages.close(pages.run(job("a", TEXT), 24), private=True)
    assert pages.ledger.match(job("b", TEXT)).sources == ()
    assert pages.ledger.match(job("a", TEXT)).sources[0].length == 24


def test_policy_none_makes_nothing_known():
    pages = Pages(cache="none")
    pages.close(pages.run(job("a", TEXT), 24), 0)
    assert pages.ledger.match(job("a", TEXT)).sources == ()


def test_only_the_system_prompt_is_known_under_its_policy():
    pages = Pages(cache="system_prompt")
    pages.close(pages.run(job("a", TEXT, boundaries=(13,)), 24), 13)
    assert pages.ledger.match(job("b", TEXT)).sources[0].length == 12


def test_a_page_freed_while_a_tick_is_in_flight_waits_for_its_commit():
    pages = Pages(pages=6)
    slot = pages.open(job("a", TEXT))
    assert pages.ledger.reserve(slot, 24)
    pages.ledger.take_ops(0)  # tick 0 is in flight and writes these pages
    pages.close(slot, 0)
    assert pages.ledger.room_free() == 0
    pages.ledger.settle(0, (), ran=True)
    assert pages.ledger.room_free() == 6


def test_no_room_is_said_and_changes_nothing():
    pages = Pages(pages=6)
    slot = pages.run(job("a", TEXT), 16)
    assert not pages.ledger.reserve(slot, 25)
    assert slot.room == 16
    assert pages.ledger.reserve(slot, 24)


def test_a_branch_shares_also_what_no_index_knows():
    pages = Pages(cache="none")
    pages.run(job("a", TEXT), 39)
    slot = pages.open(job("b", TEXT, fork_of="a"))
    assert slot.computed == 39


def test_tables_are_told_once():
    pages = Pages()
    slot = pages.open(job("a", TEXT))
    pages.ledger.reserve(slot, 10)
    (update,) = pages.ledger.take_tables()
    assert (update.slot, update.offset, len(update.pages)) == (slot.index, 0, 3)
    assert pages.ledger.take_tables() == ()
    pages.ledger.reserve(slot, 13)
    (update,) = pages.ledger.take_tables()
    assert (update.offset, len(update.pages)) == (3, 1)
