"""The ledger for paged attention: block tables, reference counts, and prefixes shared page by page.

A page without a holder stays known until it is reused, least recently used first; its content then moves to
host memory, if the backend has some (`host_pages`). A page that other slots hold is copied before it is
written (COPY_PAGES). A page that is freed while a tick is in flight stays fenced until that tick is
committed, because the tick may still write it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence as Seq
from itertools import chain

from stretto.core import event_names
from stretto.core.capabilities import Capabilities
from stretto.core.kv.block_table import BlockTable
from stretto.core.kv.host_pages import HostPages
from stretto.core.kv.ledger import CachedList, Donor, Match, Settled, Source
from stretto.core.kv.page_donors import coming, fork_parent
from stretto.core.kv.page_finder import PageFinder, PagePlan
from stretto.core.kv.page_index import Page, PageIndex, root_digest
from stretto.core.limits import TARGET_S, Limits, is_exact
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.core.slot import Job, Slot
from stretto.core.tick import Note, TableUpdate


class PageLedger:
    def __init__(self, capabilities: Capabilities, limits: Limits) -> None:
        self._can = capabilities
        self._limits = limits
        self._size = capabilities.page_tokens
        self._pages = [Page(index) for index in range(capabilities.pages)]
        self._blank = list(range(capabilities.pages - 1, -1, -1))  # free, without content
        self._cached: OrderedDict[int, None] = OrderedDict()  # free, still known by digest; oldest first
        self._fenced: dict[int, list[int]] = {}  # last tick in flight at the time -> pages freed then
        self._index = PageIndex(self._pages, self._size)
        self._tables: dict[int, BlockTable] = {}  # slot -> table
        self._updates: dict[int, TableUpdate] = {}
        self._ops: list[tuple[KvOp, int]] = []  # with the slot it is for, -1: none
        self._issued: dict[int, list[tuple[KvOp, int]]] = {}
        self._newest_tick = -1
        self._shares = limits.cache != "none"
        self._system_only = limits.cache == "system_prompt"
        self._exact = is_exact(limits, capabilities)
        self._page_bytes = self._size * capabilities.bytes_per_token
        tick_bytes = capabilities.snapshot_bytes_per_s * (limits.target_itl_s or TARGET_S)
        places = min(limits.cache_ram_bytes // self._page_bytes, capabilities.host_pages)
        self._host = HostPages(places, self._size, int(tick_bytes) // self._page_bytes)
        load_s = self._page_bytes / capabilities.snapshot_bytes_per_s
        self._find = PageFinder(self._index, self._host, self._size, exact=self._exact, load_s=load_s)
        self.notes: list[Note] = []

    # --- matching --------------------------------------------------------------------------------

    @property
    def host_bytes(self) -> int:
        return len(self._host) * self._page_bytes

    def match(self, job: Job) -> Match:
        owners = ("", job.id) if self._shares else (job.id,)
        find = self._find
        ways = (find.walk, find.walk_on) if len(self._host) else (find.walk,)
        sources = [s for owner in owners for walk in ways if (s := walk(job, owner)) is not None]
        parent = fork_parent(self._tables.values(), job)
        sources += [parent] if parent is not None else []
        sources.sort(key=lambda s: (-s.length, s.seconds, s.place))
        return Match(tuple(sources), self._coming(job))

    def _coming(self, job: Job) -> Donor | None:
        return coming(self._tables.values(), job, exact=self._exact) if self._shares else None

    def cached(self, tokens_max: int) -> CachedList:
        """Running requests' prompts, then pages without a holder, from the ends of their chains."""
        found = CachedList([], complete=not len(self._host))
        running = (
            (table.slot.job.scope, table.slot.known[: table.registered * self._size])
            for table in self._tables.values()
            if table.slot.job is not None
        )
        idle = (self._index.ending_at(self._pages[index]) for index in reversed(self._cached))
        for entry in chain(running, idle):
            if entry is None or not entry[1]:
                continue
            if len(entry[1]) > tokens_max:
                return found._replace(complete=False)
            tokens_max -= len(entry[1])
            found.prefixes.append(entry)
        return found

    # --- opening ---------------------------------------------------------------------------------

    def open(self, slot: Slot, job: Job, source: Source | None) -> bool:
        table = BlockTable(slot, self._index.root(job.scope))
        plan = PagePlan([], -1, []) if source is None else self._find.plan(job, source, self._tables)
        table.pages = plan.shared
        for page in table.pages:
            self._take(page)
        certain = length = len(table.pages) * self._size
        if source is not None and (
            (plan.copied >= 0 and self._copy_page(table, plan.copied, source.length % self._size))
            or (plan.loaded and self._load_pages(table, plan.loaded))
        ):
            length = source.length
        while length != job.cut(length):  # the copy failed, and the whole pages end inside a picture
            self._let_go([table.pages.pop()])
            length -= self._size
        self._tables[slot.index] = table
        slot.sequence = slot.index
        slot.computed = slot.planned = length
        slot.room = len(table.pages) * self._size
        self._send(table, 0)
        self._register(table, self._shared_length(table, min(length, certain)))
        return True

    def _load_pages(self, table: BlockTable, blobs: list[int]) -> bool:
        """Load pages from host memory into new ones, which are not shared before they are settled."""
        self._host.pin(blobs)  # what is evicted for them is saved elsewhere
        fresh = self._allocate(len(blobs))
        if fresh is None:
            for blob in blobs:
                self._host.unpin(blob)
            return False
        for page, blob in zip(fresh, blobs, strict=True):
            self._ops.append((KvOp(OpKind.LOAD_PAGES, page, blob=blob), table.slot.index))
        table.pages.extend(fresh)
        table.unsettled = True
        return True

    def _copy_page(self, table: BlockTable, page: int, length: int) -> bool:
        """Copy the first part of a page, to continue in the copy. The page is held until the copy is done."""
        self._take(page)
        copy = self._allocate(1)
        if copy is None:
            self._let_go([page])
            return False
        self._ops.append((KvOp(OpKind.COPY_PAGES, copy[0], page, length), table.slot.index))
        table.pages.append(copy[0])
        table.unsettled = True
        return True

    # --- pages -----------------------------------------------------------------------------------

    def _take(self, index: int) -> None:
        page = self._pages[index]
        if page.refs == 0:
            del self._cached[index]
        page.refs += 1

    def _allocate(self, count: int) -> list[int] | None:
        if len(self._blank) + len(self._cached) < count:
            return None
        taken: list[int] = []
        for _ in range(count):
            if self._blank:
                index = self._blank.pop()
            else:
                index, _ = self._cached.popitem(last=False)
                self._save_page(index)
                self._index.forget(self._pages[index])
                self.notes.append(Note(event_names.CACHE_EVICTED, "", -1, index))
            self._pages[index].refs = 1
            taken.append(index)
        return taken

    def _save_page(self, index: int) -> None:
        """The page is about to be reused: its content moves to host memory, if there is time and space."""
        if (blob := self._host.save(self._pages[index])) is not None:
            self._ops.append((KvOp(OpKind.SAVE_PAGES, index, blob=blob), -1))

    def _let_go(self, indices: Seq[int]) -> None:
        """The last pages are released first, so that the beginning of a prompt stays cached longest."""
        for index in reversed(indices):
            page = self._pages[index]
            page.refs -= 1
            if page.refs == 0 and page.digest is not None:
                self._cached[index] = None
            elif page.refs == 0:
                self._free_blank(index)

    def _free_blank(self, index: int) -> None:
        """A page that a tick in flight may still write is not handed out before that tick is committed."""
        if self._issued:
            self._fenced.setdefault(self._newest_tick, []).append(index)
        else:
            self._blank.append(index)

    def _register(self, table: BlockTable, length: int) -> None:
        """Enter full, certain pages of the first `length` tokens into the index."""
        known = table.slot.known
        while table.registered < length // self._size:
            start = table.registered * self._size
            tokens = known[start : start + self._size]
            page = self._pages[table.pages[table.registered]]
            table.chain = self._index.add(page, table.chain, tokens)
            table.registered += 1

    def _shared_length(self, table: BlockTable, length: int) -> int:
        """Of the first `length` tokens, those that other requests may reuse."""
        if not self._shares or table.slot.job is None:
            return 0
        if self._system_only:
            boundaries = table.slot.job.request.boundaries
            return min(length, boundaries[0] if boundaries else 0)
        return min(length, table.slot.job.prompt_tokens) if self._exact else length

    # --- growing and shrinking -------------------------------------------------------------------

    def reserve(self, slot: Slot, length: int) -> bool:
        if length <= slot.room:
            return True
        table = self._tables[slot.index]
        pages = self._allocate(-(-length // self._size) - len(table.pages))
        if pages is None:
            return False
        offset = len(table.pages)
        table.pages.extend(pages)
        slot.room = len(table.pages) * self._size
        self._send(table, offset)
        return True

    def _send(self, table: BlockTable, offset: int) -> None:
        pending = self._updates.get(table.slot.index)
        offset = min(offset, pending.offset) if pending is not None else offset
        self._updates[table.slot.index] = TableUpdate(table.slot.index, offset, tuple(table.pages[offset:]))

    def relieve(self) -> bool:
        """A page pool has no hidden costs: pages that the ledger counts as free are free."""
        return False

    def room_for(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def room_shared(self, job: Job, source: Source | None) -> int:
        pages = self._find.plan(job, source, self._tables).shared if source is not None else []
        return sum(1 for index in pages if self._pages[index].refs > 0)

    def room_free(self) -> int:
        return len(self._blank) + len(self._cached)

    def room_gain(self, slots: Seq[Slot]) -> int:
        held = Counter(index for slot in slots for index in self._tables[slot.index].pages)
        return sum(1 for index, count in held.items() if self._pages[index].refs == count)

    def rollback(self, slot: Slot, length: int) -> None:
        """Rows after the committed length are overwritten."""

    def overrun(self, slot: Slot) -> None:
        """Rows after the committed length are overwritten."""

    def committed(self, slot: Slot) -> None:
        table = self._tables[slot.index]
        if not table.unsettled:
            self._register(table, self._shared_length(table, slot.computed))

    def checkpoint_at(self, job: Job, lengths: Seq[int]) -> tuple[int, ...]:
        return ()

    def checkpoint(self, slot: Slot, length: int) -> None:
        raise AssertionError("pages need no checkpoints")

    def close(self, slot: Slot, keep: int, *, private: bool = False) -> None:
        table = self._tables.pop(slot.index)
        job = slot.job
        assert job is not None
        self._drop_copies(slot.index)
        self._updates.pop(slot.index, None)
        if table.unsettled or keep <= 0:
            self._unregister(table, 0)
        elif private:
            table.chain, table.registered = root_digest(job.scope, job.id), 0
            self._register(table, min(keep, slot.computed))
        else:
            self._register(table, self._shared_length(table, min(keep, slot.computed)))
        self._let_go(table.pages)
        slot.sequence = -1

    def _unregister(self, table: BlockTable, keep_pages: int) -> None:
        for index in table.pages[keep_pages:]:
            if self._pages[index].refs == 1:
                self._index.forget(self._pages[index])

    def _drop_copies(self, slot: int) -> None:
        """Operations planned for a slot that will not run: release their sources."""
        for op, owner in [planned for planned in self._ops if planned[1] == slot]:
            self._ops.remove((op, owner))
            self._release_source(op)

    def _release_source(self, op: KvOp) -> None:
        if op.kind is OpKind.COPY_PAGES:
            self._let_go([op.other])
        elif op.kind is OpKind.LOAD_PAGES:
            self._host.unpin(op.blob)

    def forget(self, request_id: str) -> None:
        """Pages that only this request could find are evicted in time: no other request has their digest."""

    def compact(self, slots: Seq[Slot]) -> None:
        """Block tables have no gaps."""

    # --- operations ------------------------------------------------------------------------------

    def take_ops(self, tick_id: int) -> tuple[KvOp, ...]:
        self._newest_tick = tick_id
        self._issued[tick_id], self._ops = sorted(self._ops, key=lambda planned: planned[0].kind), []
        self._host.begin_plan()
        return tuple(op for op, _ in self._issued[tick_id])

    def take_tables(self) -> tuple[TableUpdate, ...]:
        updates, self._updates = tuple(self._updates.values()), {}
        return updates

    def settle(self, tick_id: int, results: Seq[OpResult], *, ran: bool) -> Settled:
        issued = self._issued.pop(tick_id)
        failed = OpResult(ok=False, reason="not run")
        rebuild: list[Slot] = []
        for (op, owner), result in zip(issued, results or [failed] * len(issued), strict=True):
            if op.kind is OpKind.SAVE_PAGES:
                self._host.saved(op.blob, ok=result.ok)
                continue
            self._release_source(op)
            table = self._tables.get(owner)
            if table is None or op.sequence not in table.pages:
                continue
            if result.ok:
                table.unsettled = False
            else:
                slot = self.lose(owner)
                rebuild += [slot] if slot is not None else []
        self._blank.extend(self._fenced.pop(tick_id, ()))
        return Settled(rebuild)

    def lose(self, sequence: int) -> Slot | None:
        table = self._tables.get(sequence)
        if table is None or table.slot.job is None:
            return None
        table.unsettled = True
        self._unregister(table, 0)
        self._let_go(table.pages)
        slot, job = table.slot, table.slot.job
        fresh = BlockTable(slot, root_digest(job.scope))
        self._tables[sequence] = fresh
        self._send(fresh, 0)
        slot.computed = slot.planned = slot.room = 0
        return slot

    def check(self) -> None:
        refs = [0] * len(self._pages)
        for table in self._tables.values():
            assert len(set(table.pages)) == len(table.pages), "a page twice in one table"
            for index in table.pages:
                refs[index] += 1
            assert len(table.pages) * self._size == table.slot.room, "a slot's room is not its pages"
        planned = [op for ops in (self._ops, *self._issued.values()) for op, _ in ops]
        for op in planned:
            if op.kind is OpKind.COPY_PAGES:
                refs[op.other] += 1
        self._host.check(sum(op.kind is OpKind.LOAD_PAGES for op in planned))
        assert refs == [page.refs for page in self._pages], "reference counts do not match the tables"
        fenced = [index for pages in self._fenced.values() for index in pages]
        free = sorted([*self._blank, *self._cached, *fenced])
        assert free == [p.index for p in self._pages if p.refs == 0], "a page is lost or free twice"
        assert all(self._pages[i].digest is not None for i in self._cached), "a cached page without a digest"
        self._index.check()
