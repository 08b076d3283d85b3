"""The page ledger, driven by hand: block tables grow, share, copy and are given back, a tick ahead or not.

The machine stands in for the scheduler and for the backend, with up to two ticks in flight. Pages live in the
simulated memory, which poisons a page that is handed out while a tick in flight still writes it. Between two
steps every open slot's pages hold exactly the tokens it has computed.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stretto.backends.simulated import SimulatedModel
from stretto.backends.simulated.memory import PagedMemory
from stretto.core.kv.pages import PageLedger
from stretto.core.limits import CACHE_POLICIES, Limits
from stretto.core.ops import KvOp, OpResult
from stretto.core.slot import Job, Slot, Status
from stretto.testing.strategies import capabilities, text
from tests.simulation.machines.profile import DICE, PROFILE, draw_job

WINDOW = 64


class Rows(NamedTuple):
    slot: Slot
    epoch: int
    start: int
    count: int
    decodes: bool
    wrong: int = 0


class Flight(NamedTuple):
    tick_id: int
    rows: list[Rows]
    results: tuple[OpResult, ...]
    failed: bool


class PageMachine(RuleBasedStateMachine):
    @initialize(data=st.data(), slots=st.integers(1, 3), cache=st.sampled_from(CACHE_POLICIES))
    def begin(self, data, slots, cache):
        self.can = data.draw(capabilities(slots=slots, layouts=("pages", "ahead"), window=WINDOW))
        self.ledger = PageLedger(self.can, Limits(n_seq_max=slots, cache=cache, cache_min_tokens=4))
        self.memory = PagedMemory(self.can)
        self.model = SimulatedModel()
        self.slots = [Slot(index) for index in range(slots)]
        self.preempted: list[Job] = []
        self.future: dict[str, array[int]] = {}
        self.flights: deque[Flight] = deque()
        self.tick_id = 0
        self.opened = 0
        self.cache = cache

    @property
    def free(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.job is None]

    @property
    def active(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.job is not None]

    # --- coming and going ------------------------------------------------------------------------

    @precondition(lambda self: self.free)
    @rule(dice=DICE)
    def open(self, dice):
        job = draw_job(dice, self.opened)
        self.opened += 1
        self.future[job.id] = text(WINDOW, 5 + dice.randrange(2))
        self._open(dice, job)

    @precondition(lambda self: self.free and self.preempted)
    @rule(dice=DICE)
    def resume(self, dice):
        self._open(dice, self.preempted.pop(dice.randrange(len(self.preempted))))

    def _open(self, dice, job: Job) -> None:
        slot = self.free[0]
        sources = self.ledger.match(job).sources
        for source in sources:
            assert 0 < source.length < len(job.known), "a whole prompt leaves no row to run"
        if self.cache == "none" and not job.preemptions:
            assert not sources, "policy none shares no page"
        source = dice.choice(sources) if sources and dice.random() < 0.9 else None
        assert self.ledger.open(slot, job, source), "opening takes no memory beyond what it shares"
        assert slot.computed == slot.planned <= slot.room
        assert slot.computed <= (source.length if source is not None else 0)
        job.status = Status.RUNNING
        slot.job, slot.known = job, job.known

    @precondition(lambda self: self.active)
    @rule(dice=DICE)
    def close(self, dice):
        slot = dice.choice(self.active)
        self._close(slot, dice.choice((slot.computed, slot.computed, slot.computed // 2, 0)), preempts=False)

    @precondition(lambda self: self.active)
    @rule(dice=DICE, private=st.booleans())
    def preempt(self, dice, private):
        slot = dice.choice(self.active)
        self._close(slot, slot.computed, preempts=True, private=private)

    def _close(self, slot: Slot, keep: int, *, preempts: bool, private: bool = False) -> None:
        job = slot.job
        assert job is not None
        if preempts:
            job.status = Status.PREEMPTED
            job.preemptions += 1
            self.preempted.append(job)
        self.ledger.close(slot, keep, private=preempts and private)
        slot.epoch += 1
        slot.clear()
        if not preempts:
            job.status = Status.ENDED
            self.ledger.forget(job.id)

    def _traffic(self, dice) -> None:
        for _ in range(2):
            if self.active and dice.random() < 0.2:
                self.close(dice)
            elif self.active and dice.random() < 0.1:
                self.preempt(dice, dice.random() < 0.5)
            elif self.preempted and self.free and dice.random() < 0.3:
                self.resume(dice)
            elif self.free:
                self.open(dice)

    # --- ticks -----------------------------------------------------------------------------------

    @rule(dice=DICE)
    def tick(self, dice):
        self._tick(dice)

    @rule(dice=DICE)
    def ticks(self, dice):
        for _ in range(3):
            self._tick(dice)

    @rule(dice=DICE)
    def faulty_operation(self, dice):
        self._tick(dice, op_fault=True)

    @rule(dice=DICE)
    def faulty_pass(self, dice):
        self._tick(dice, fails=True)

    @precondition(lambda self: self.flights)
    @rule()
    def wait(self):
        """Commit what is in flight before anything new is planned."""
        while self.flights:
            self._commit()

    def _tick(self, dice, *, op_fault: bool = False, fails: bool = False) -> None:
        void = any(flight.failed for flight in self.flights)  # launched before anybody knew
        self._traffic(dice)
        planned = [rows for slot in self.active if (rows := self._plan(dice, slot)) is not None]
        ops = self.ledger.take_ops(self.tick_id)
        self.memory.begin_tick()
        for update in self.ledger.take_tables():
            self.memory.update_table(update)
        broken_at = dice.randrange(len(ops)) if ops and op_fault else -1
        results, broken_pages = self._execute(ops, broken_at) if not void else ((), set())
        ran = [r for r in planned if not void and not broken_pages & set(self._pages(r.slot))]
        for rows in ran[: len(ran) // 2] if fails else ran:
            self._write(rows)
        self.flights.append(Flight(self.tick_id, planned, results, fails))
        self.tick_id += 1
        while len(self.flights) > self.can.plan_ahead:
            self._commit()

    def _pages(self, slot: Slot) -> list[int]:
        return self.memory._tables[slot.index]

    def _plan(self, dice, slot: Slot) -> Rows | None:
        """A chunk of the prompt, or one decode row, also when the token before it is still in flight."""
        job = slot.job
        assert job is not None
        due = slot.rows_due
        count = min(due, dice.choice((0, 1, 5, 40, 40)))
        full = len(slot.known) + slot.pending >= WINDOW
        if count <= 0 or full or not self.ledger.reserve(slot, slot.planned + count):
            return None
        wrong = 0
        if due == 1 and not slot.pending and not self.can.plan_ahead and dice.random() < 0.3:
            wrong = 2 if self.ledger.reserve(slot, slot.planned + 3) else 0
        assert slot.room >= slot.planned + count + wrong, "reserve said yes and gave no room"
        start = slot.planned
        decodes = start + count == len(slot.known) + slot.pending
        slot.planned += count + wrong
        slot.pending += decodes
        return Rows(slot, slot.epoch, start, count, decodes, wrong)

    def _execute(self, ops: tuple[KvOp, ...], broken_at: int) -> tuple[tuple[OpResult, ...], set[int]]:
        results: list[OpResult] = []
        broken: set[int] = set()
        for at, op in enumerate(ops):
            if at == broken_at:
                self.memory.damage(op)
                results.append(OpResult(ok=False, reason="planned by the machine"))
                broken.add(op.sequence)
            else:
                results.append(self.memory.execute(op))
        return tuple(results), broken

    def _write(self, rows: Rows) -> None:
        job = rows.slot.job
        assert job is not None
        whole = job.request.tokens + self.future[job.id]
        tokens = array("i", whole[rows.start : rows.start + rows.count]) + array("i", [500] * rows.wrong)
        self.memory.append(rows.slot.sequence, rows.start, self.model.cells(job.scope, tokens))

    def _commit(self) -> None:
        flight = self.flights.popleft()
        self.memory.end_tick()
        for slot in self.ledger.settle(flight.tick_id, flight.results, ran=not flight.failed).rebuild:
            self._rebuild(slot)
        for rows in flight.rows:
            slot = rows.slot
            if slot.epoch != rows.epoch:
                continue
            if flight.failed:
                slot.planned, slot.pending = slot.computed, 0
            else:
                self._advance(rows)
        if flight.failed:
            self._void()

    def _rebuild(self, slot: Slot) -> None:
        assert (slot.computed, slot.planned, slot.room) == (0, 0, 0)
        slot.epoch += 1
        slot.pending = 0

    def _void(self) -> None:
        """A tick launched after a failed one did not run, and has no results."""
        while self.flights:
            later = self.flights.popleft()
            self.memory.end_tick()
            for slot in self.ledger.settle(later.tick_id, (), ran=False).rebuild:
                self._rebuild(slot)
            for rows in later.rows:
                if rows.slot.epoch == rows.epoch:
                    rows.slot.planned, rows.slot.pending = rows.slot.computed, 0

    def _advance(self, rows: Rows) -> None:
        slot, job = rows.slot, rows.slot.job
        assert job is not None
        slot.computed = rows.start + rows.count
        if rows.decodes:
            slot.pending -= 1
            slot.known.append(self.future[job.id][job.generated])
        if rows.wrong:
            self.ledger.rollback(slot, slot.computed)
            slot.planned = slot.computed
        self.ledger.committed(slot)

    @precondition(lambda self: self.active)
    @rule(dice=DICE)
    def lose(self, dice):
        """A backend that could not bring a sequence back after a failed pass."""
        self.wait()
        slot = dice.choice(self.active) if self.active else None
        if slot is not None:
            assert self.ledger.lose(slot.sequence) is slot
            self._rebuild(slot)

    # --- the promises ----------------------------------------------------------------------------

    @invariant()
    def books(self):
        if not hasattr(self, "ledger"):
            return
        self.ledger.check()
        assert 0 <= self.ledger.room_free() <= self.can.pages
        for slot in self.active:
            assert slot.computed <= slot.planned <= slot.room
        self.prefixes()

    def prefixes(self):
        """What a slot has computed is what its pages hold, unless a copy or a table is still on its way."""
        coming = {update.slot for update in self.ledger._updates.values()}
        coming |= {slot for slot, table in self.ledger._tables.items() if table.unsettled}
        for slot in self.active:
            if slot.index not in coming and slot.computed:
                right = self.model.cells(slot.job.scope, slot.known[: slot.computed])
                held = self.memory.content(slot.sequence, slot.computed)
                assert held == right.tobytes(), "a slot's pages hold something else"

    def teardown(self):
        """When everybody has gone, every page is free again."""
        if not hasattr(self, "ledger") or sys.exc_info()[0] is not None:
            return
        self.wait()
        for slot in self.active:
            self._close(slot, slot.computed, preempts=False)
        self._execute(self.ledger.take_ops(self.tick_id), -1)
        self.ledger.settle(self.tick_id, (), ran=False)
        self.ledger.check()
        assert self.ledger.room_free() == self.can.pages, "pages are leaked"


TestPages = PageMachine.TestCase
TestPages.settings = PROFILE
