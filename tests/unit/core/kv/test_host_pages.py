"""Evicted pages go to host memory and come back; bounded, and found only once their save has succeeded."""

from __future__ import annotations

from stretto.core.kv.pages import PageLedger
from stretto.core.limits import Limits
from stretto.core.ops import OpKind
from tests.unit.core.kv.rig import job
from tests.unit.core.kv.test_pages import SIZE, TEXT, Pages
from tests.unit.core.rig import paged, prompt


class WithHost(Pages):
    """A pool of ten pages, and places for `host` more."""

    def __init__(self, host: int = 8, pages: int = 10, **limits) -> None:
        super().__init__(pages, **limits)
        can = paged(3, pages=pages, page_tokens=SIZE, host_pages=1 << 20, bytes_per_token=10)
        kept = {"n_seq_max": 3, "cache_min_tokens": 1, "cache_ram_bytes": host * SIZE * 10}
        self.ledger = PageLedger(can, Limits(**kept | limits))

    def fill(self, name: str, start: int, length: int = 40, *, ok: bool = True):
        """A request that takes the whole pool, and ends."""
        slot = self.open(job(name, length + 1, start=start))
        assert self.ledger.reserve(slot, length)
        ops, _ = self.tick(ok=ok)
        slot.computed = slot.planned = length
        self.ledger.committed(slot)
        self.close(slot, 0)
        return ops

    def found(self, made) -> int:
        return max((source.length for source in self.ledger.match(made).sources), default=0)


def test_an_evicted_prefix_is_loaded_again():
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT), 24))
    ops = pages.fill("b", 9)
    assert [op.kind for op in ops] == [OpKind.SAVE_PAGES] * 6
    saved = {op.sequence: op.blob for op in ops}
    assert len(set(saved.values())) == 6
    assert pages.ledger.host_bytes == 6 * SIZE * 10
    slot = pages.open(job("c", TEXT))
    assert (slot.computed, slot.room) == (24, 24)
    ops, settled = pages.tick()
    assert [op.kind for op in ops] == [OpKind.LOAD_PAGES] * 6
    assert {op.blob for op in ops} == set(saved.values())
    assert settled.rebuild == []


def test_the_part_that_is_still_in_the_pool_is_shared():
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9, 24)  # takes the four blank pages, and the last two of the prompt
    slot = pages.open(job("c", TEXT))
    ops, _ = pages.tick()
    assert (slot.computed, [op.kind for op in ops]) == (24, [OpKind.LOAD_PAGES] * 2)


def test_a_loaded_page_may_be_used_in_part():
    """Never the whole prompt: one row must run. The page is not shared, so its rest can be overwritten."""
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9)
    slot = pages.open(job("c", TEXT[:24]))
    ops, _ = pages.tick()
    assert (slot.computed, slot.room, len(ops)) == (23, 24, 6)


def test_memory_is_bounded_and_the_end_of_a_prompt_goes_first():
    pages = WithHost(host=4)
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9)
    assert pages.ledger.host_bytes == 4 * SIZE * 10
    assert pages.found(job("c", TEXT)) == 0, "the beginning was evicted last and found no place"
    pages = WithHost(host=0)
    pages.close(pages.run(job("a", TEXT), 24))
    assert pages.fill("b", 9) == ()


def test_the_least_recently_used_place_is_reused():
    pages = WithHost(host=6)
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9)
    other = prompt(40, 7)
    pages.close(pages.run(job("d", other), 24))
    ops = pages.fill("e", 11)
    assert OpKind.SAVE_PAGES in {op.kind for op in ops}
    assert pages.ledger.host_bytes == 6 * SIZE * 10
    assert pages.found(job("f", other)) == 24
    assert pages.found(job("c", TEXT)) == 0


def test_a_failed_save_is_never_found():
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9, ok=False)
    assert (pages.found(job("c", TEXT)), pages.ledger.host_bytes) == (0, 0)


def test_a_failed_load_rebuilds_the_slot_and_keeps_the_saved_pages():
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9)
    slot = pages.open(job("c", TEXT))
    _, settled = pages.tick(ok=False)
    assert settled.rebuild == [slot]
    assert (slot.computed, slot.room) == (0, 0)
    pages.close(slot, 0)
    assert pages.found(job("d", TEXT)) == 24


def test_a_load_of_a_request_that_ended_is_not_executed():
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT), 24))
    pages.fill("b", 9)
    pages.close(pages.open(job("c", TEXT)), 0)
    ops, _ = pages.tick()
    assert ops == ()
    assert pages.ledger.room_free() == 10


def test_pages_of_a_preempted_request_come_back_for_it_alone():
    pages = WithHost(cache="none")
    pages.close(pages.run(job("a", TEXT), 24), private=True)
    pages.fill("b", 9)
    assert pages.found(job("c", TEXT)) == 0
    assert pages.found(job("a", TEXT)) == 24


def test_saves_take_a_bounded_share_of_a_tick():
    pages = WithHost(target_itl_s=1e-12)
    pages.close(pages.run(job("a", TEXT), 24))
    assert pages.fill("b", 9) == ()


def test_scopes_do_not_meet_in_host_memory():
    pages = WithHost()
    pages.close(pages.run(job("a", TEXT, tenant="one"), 24))
    pages.fill("b", 9)
    assert pages.found(job("c", TEXT, tenant="two")) == 0
    assert pages.found(job("d", TEXT, tenant="one")) == 24
