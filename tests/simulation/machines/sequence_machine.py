"""A ledger of sequences, driven by hand: slots open, compute, speculate, fail and close in any order.

The machine stands in for the scheduler on one side and for the backend on the other. Operations run on the
simulated memory, any of them may fail, and after every tick the memory must hold exactly what the books
claim: for open slots, idle sequences, snapshots and checkpoints alike.
"""

from __future__ import annotations

import sys
from array import array
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stretto.backends.simulated import SimulatedModel
from stretto.backends.simulated.memory import make_memory
from stretto.core.cache_policies import POLICIES
from stretto.core.capabilities import Rewind
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.limits import CACHE_POLICIES, Limits
from stretto.core.ops import WRITES, KvOp, OpKind, OpResult, check_order
from stretto.core.slot import Job, Slot, Status
from stretto.testing.strategies import capabilities, text
from tests.simulation.machines.profile import DICE, draw_job

WINDOW = 64


class Rows(NamedTuple):
    """One slot's share of a tick: rows from `start`, of which the last `wrong` are rejected drafts."""

    slot: Slot
    start: int
    tokens: array[int]
    decodes: bool
    accepted: int = 0
    wrong: int = 0


class SequenceMachine(RuleBasedStateMachine):
    layouts: tuple[str, ...] = ()

    @initialize(data=st.data(), slots=st.integers(1, 3), cache=st.sampled_from(CACHE_POLICIES))
    def begin(self, data, slots, cache):
        self.can = data.draw(capabilities(slots=slots, layouts=self.layouts, window=WINDOW))
        self.limits = Limits(
            n_seq_max=slots,
            cache=cache,
            cache_min_tokens=data.draw(st.sampled_from((1, 4, 8))),
            cache_ram_bytes=data.draw(st.sampled_from((0, 600, 1 << 20))),
        )
        self.ledger = SequenceLedger(self.can, self.limits)
        self.memory = make_memory(self.can)
        self.model = SimulatedModel()
        self.slots = [Slot(index) for index in range(slots)]
        self.preempted: list[Job] = []
        self.future: dict[str, array[int]] = {}
        self.tick_id = 0
        self.opened = self.hits = 0
        self.pending: dict[int, int] = {}  # target -> source of copies that no pass has carried out yet
        self.trouble = False  # an operation failed: the memory may hold more than the books know

    # --- what the scheduler does -----------------------------------------------------------------

    @property
    def free(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.job is None]

    @property
    def active(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.job is not None]

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
        job = self.preempted.pop(dice.randrange(len(self.preempted)))
        if not self._open(dice, job):
            self.preempted.append(job)

    def _open(self, dice, job: Job) -> bool:
        slot = self.free[0]
        match = self.ledger.match(job)
        lengths = [source.length for source in match.sources]
        assert lengths == sorted(lengths, reverse=True), "the longest source comes first"
        for source in match.sources:
            assert 0 < source.length < len(job.known), "a whole prompt leaves no row to run"
            assert source.length <= source.common <= source.held
        source = dice.choice(match.sources) if match.sources and dice.random() < 0.9 else None
        if not self.ledger.open(slot, job, source):
            return False
        assert slot.computed == slot.planned
        assert slot.computed in (0, source.length if source is not None else 0)
        self.hits += slot.computed > 0
        job.status = Status.RUNNING
        slot.job, slot.known = job, job.known
        self._mark(slot)
        return True

    def _mark(self, slot: Slot) -> None:
        assert slot.job is not None
        lengths = self.ledger.checkpoint_at(slot.job, POLICIES[self.limits.cache].keep(slot.job))
        slot.checkpoint_at = tuple(mark for mark in lengths if mark > slot.computed)

    @precondition(lambda self: self.active)
    @rule(dice=DICE)
    def close(self, dice):
        slot = dice.choice(self.active)
        keep = dice.choice((slot.computed, slot.computed, slot.computed, slot.computed // 2, 0))
        self._close(slot, keep, preempts=False)

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
            if job.preemptions:
                self.ledger.forget(job.id)

    @precondition(lambda self: self.preempted)
    @rule()
    def forget(self):
        job = self.preempted.pop(0)
        job.status = Status.ENDED
        self.ledger.forget(job.id)

    @rule()
    def relieve(self):
        self.ledger.relieve()

    # --- a tick ----------------------------------------------------------------------------------

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

    @rule(dice=DICE, fails=st.sampled_from(("before", "during")))
    def faulty_pass(self, dice, fails):
        self._tick(dice, fails=fails)

    def _traffic(self, dice) -> None:
        """Somebody comes, somebody goes: also where hypothesis leaves those rules out of an example."""
        for _ in range(2):
            if self.active and dice.random() < 0.2:
                self.close(dice)
            elif self.active and dice.random() < 0.1:
                self.preempt(dice, dice.random() < 0.5)
            elif self.preempted and self.free and dice.random() < 0.3:
                self.resume(dice)
            elif self.free:
                self.open(dice)

    def _tick(self, dice, *, op_fault: bool = False, fails: str = "") -> None:
        self._traffic(dice)
        self.ledger.compact(self.active)
        planned = [rows for slot in self.active if (rows := self._plan(dice, slot)) is not None]
        ops = self.ledger.take_ops(self.tick_id)
        check_order(ops)
        broken_at = dice.randrange(len(ops)) if op_fault and ops else -1
        results, broken = self._execute(ops, broken_at)
        self._run(dice, planned, results, broken, fails)
        self.tick_id += 1
        self.prefixes()

    def _plan(self, dice, slot: Slot) -> Rows | None:
        """A chunk, or a decode row with drafts behind it; memory first, as the scheduler does it."""
        job = slot.job
        assert job is not None
        due = next((m - slot.planned for m in slot.checkpoint_at if m > slot.planned), slot.rows_due)
        count = min(due, dice.choice((0, 1, 5, 40, 40)))
        drafts = dice.choice((0, 0, 2, 3)) if due == 1 == count and not slot.checkpoint_at else 0
        if self.can.rewind is Rewind.CHECKPOINT or len(slot.known) + drafts + 1 >= WINDOW:
            drafts = 0
        if count == 0 or len(slot.known) >= WINDOW or not self.ledger.reserve(slot, slot.planned + count):
            return None
        if drafts and not self.ledger.reserve(slot, slot.planned + 1 + drafts):
            drafts = 0
        assert slot.room >= slot.planned + count + drafts, "reserve said yes and gave no room"
        start = slot.planned
        if slot.checkpoint_at and start >= slot.checkpoint_at[0]:
            self.ledger.checkpoint(slot, start)
            slot.checkpoint_at = tuple(mark for mark in slot.checkpoint_at if mark > start)
        tokens = slot.known[start : start + count]
        accepted = dice.randint(0, drafts)
        tokens.extend(self.future[job.id][job.generated : job.generated + accepted])
        tokens.extend([500] * (drafts - accepted))
        slot.planned += count + drafts
        decodes = start + count == len(slot.known)
        return Rows(slot, start, tokens, decodes, accepted, drafts - accepted)

    def _execute(self, ops: tuple[KvOp, ...], broken_at: int) -> tuple[list[OpResult], set[int]]:
        results: list[OpResult] = []
        broken: set[int] = set()
        for at, op in enumerate(ops):
            if op.kind in WRITES and (op.sequence in broken or op.other in broken):
                results.append(OpResult(ok=False, reason="an operation before it failed"))
            elif at == broken_at:
                self.memory.damage(op)
                results.append(OpResult(ok=False, reason="planned by the machine"))
            else:
                results.append(self.memory.execute(op))
                assert results[-1].ok or self.trouble, f"{op} cannot be done: {results[-1].reason}"
            if op.kind is OpKind.COPY and results[-1].ok and self.can.pages == 0:
                self.pending[op.sequence] = op.other
            if op.kind in WRITES and not results[-1].ok:
                broken.add(op.sequence)
            self.trouble = self.trouble or not results[-1].ok
        return results, broken

    def _run(self, dice, planned: list[Rows], results: list[OpResult], broken: set[int], fails: str) -> None:
        rows = [r for r in planned if r.slot.sequence not in broken]
        room = sum(len(r.tokens) for r in rows) <= self.memory.free_rows()
        assert room or self.trouble, "the books had room for rows that the memory has not"
        if not rows:
            self._commit(planned, results, ran=False)
            return
        if not room or fails == "before":
            self._recover(planned, results, ran=False, lose=False)
            return
        self.memory.begin_pass()
        self.pending.clear()
        left = dice.randint(0, 6) if fails == "during" else 1 << 30
        for r in rows:
            tokens = r.tokens[:left]
            scope = r.slot.job.scope
            self.memory.append(r.slot.sequence, r.start, self.model.cells(scope, tokens))
            if len(tokens) < len(r.tokens):
                self._recover(planned, results, ran=True, lose=dice.random() < 0.5)
                return
            left -= len(tokens)
        self._commit(planned, results, ran=True)

    def _settle(self, results: list[OpResult], *, ran: bool) -> None:
        for slot in self.ledger.settle(self.tick_id, tuple(results), ran=ran).rebuild:
            self._rebuild(slot)

    def _rebuild(self, slot: Slot) -> None:
        assert (slot.computed, slot.planned) == (0, 0), "a slot to rebuild starts from nothing"
        slot.epoch += 1
        self._mark(slot)

    def _commit(self, planned: list[Rows], results: list[OpResult], *, ran: bool) -> None:
        epochs = [r.slot.epoch for r in planned]
        self._settle(results, ran=ran)
        for r, epoch in zip(planned, epochs, strict=True):
            if r.slot.epoch == epoch:
                self._advance(r)

    def _advance(self, r: Rows) -> None:
        slot, job = r.slot, r.slot.job
        assert job is not None
        slot.computed = r.start + len(r.tokens) - r.wrong
        if r.decodes:
            slot.known.extend(self.future[job.id][job.generated : job.generated + 1 + r.accepted])
        if r.wrong:
            self.ledger.rollback(slot, slot.computed)
        slot.planned = slot.computed

    def _recover(self, planned: list[Rows], results: list[OpResult], *, ran: bool, lose: bool) -> None:
        """The pass failed: the backend cuts back what it can, the books take note of what is lost.

        Rows that ran and were cut back have moved a sliding window on, so here such a model loses them.
        """
        lose = lose or (ran and self.can.rewind is Rewind.WINDOW)
        lost = [
            r.slot.sequence for r in planned if lose or not self.memory.roll_back(r.slot.sequence, r.start)
        ]
        epochs = [r.slot.epoch for r in planned]
        self._settle(results, ran=ran)
        for sequence in sorted(lost):
            slot = self.ledger.lose(sequence)
            if slot is not None:
                self._rebuild(slot)
        for r, epoch in zip(planned, epochs, strict=True):
            if r.slot.epoch == epoch:
                r.slot.planned = r.slot.computed

    @precondition(lambda self: any(s.planned == s.computed > 0 for s in self.active))
    @rule(dice=DICE)
    def bad_output(self, dice):
        """A slot gave no valid token: its last row is taken back and the request ends."""
        slot = dice.choice([s for s in self.active if s.planned == s.computed > 0])
        self.ledger.rollback(slot, slot.computed)
        self._close(slot, slot.computed, preempts=False)

    # --- the promises ----------------------------------------------------------------------------

    @invariant()
    def books(self):
        if hasattr(self, "ledger"):
            self.ledger.check()
            for slot in self.active:
                assert slot.computed <= slot.planned <= max(slot.room, slot.computed)

    def prefixes(self):
        """Between two ticks: what the books claim is what the memory holds."""
        assert sorted(self.memory.blobs) == self.ledger.blobs(), "a blob is leaked or missing"
        for sequence in self.ledger.table.all:
            prefix, held = sequence.prefix, sequence.held
            if prefix is None or sequence.index in self.pending:
                continue
            assert self.memory.length(sequence.index) >= held
            right = self.model.cells(prefix.scope, prefix.tokens[:held])
            assert self.memory.content(sequence.index, held) == right.tobytes(), "not what was claimed"
            for checkpoint in prefix.checkpoints:
                assert self.memory.blobs[checkpoint.blob].state == right[: checkpoint.length]
        for slot in self.active:
            prefix = self.ledger.table.of(slot).prefix
            assert prefix.tokens is slot.known
            assert prefix.scope == slot.job.scope
        self._snapshots()

    def _snapshots(self):
        for snapshot in self.ledger.store:
            prefix = snapshot.prefix
            if snapshot.ready:
                right = self.model.cells(prefix.scope, prefix.tokens[: prefix.length])
                blob = self.memory.blobs[snapshot.id]
                assert blob.cells[: prefix.length] == right, "a snapshot of something else"
                if self.can.rewind is Rewind.CHECKPOINT:
                    assert blob.state == right
                for checkpoint in prefix.checkpoints:
                    assert self.memory.blobs[checkpoint.blob].state == right[: checkpoint.length]

    def teardown(self):
        """When everybody has gone and idle entries are given up, all is free."""
        if not hasattr(self, "ledger") or sys.exc_info()[0] is not None:
            return
        for slot in self.active:
            self._close(slot, 0, preempts=False)
        while self.preempted:
            self.forget()
        while self.ledger.relieve():
            pass
        for _ in range(2):
            results, _ = self._execute(self.ledger.take_ops(self.tick_id), -1)
            self._settle(results, ran=True)
            self.memory.begin_pass()
            self.pending.clear()
            self.tick_id += 1
        self.prefixes()
        self.ledger.check()
        assert all(sequence.prefix is None for sequence in self.ledger.table.all)
        assert all(self.memory.length(sequence.index) == 0 for sequence in self.ledger.table.all)
        assert not any(snapshot.pins for snapshot in self.ledger.store), "a snapshot is pinned for nobody"
        if self.can.pages:
            assert self.memory.free_rows() == self.ledger.room_free() == self.can.pages, "cells are leaked"
