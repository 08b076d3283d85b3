"""A ledger of sequences with slots and memory to try it on, one call a step."""

from __future__ import annotations

from array import array

from stretto.backends.simulated import SimulatedModel
from stretto.backends.simulated.memory import make_memory
from stretto.core.capabilities import Capabilities
from stretto.core.fairness import Account
from stretto.core.kv.ledger import Source
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.limits import Limits
from stretto.core.ops import KvOp, OpKind, OpResult, check_order
from stretto.core.slot import Job, Slot
from tests.unit.core.rig import ask


def job(name: str, tokens: int | array[int], **options) -> Job:
    request = ask(name, tokens, **options)
    return Job(request, arrival=0, account=Account("", 1.0), now=0.0, length_max=4096)


class Bench:
    def __init__(self, can: Capabilities, **limits) -> None:
        self.limits = Limits(**{"n_seq_max": can.sequences_max, "cache_min_tokens": 4} | limits)
        self.ledger = SequenceLedger(can, self.limits)
        self.memory = make_memory(can)
        self.model = SimulatedModel()
        self.slots = [Slot(index) for index in range(can.sequences_max)]
        self.tick_id = 0

    def open(self, job: Job, source: Source | None = None) -> Slot:
        slot = next(slot for slot in self.slots if slot.job is None)
        assert self.ledger.open(slot, job, source)
        slot.job, slot.known = job, job.known
        return slot

    def best(self, job: Job) -> Source:
        return self.ledger.match(job).sources[0]

    def tick(
        self, *, rows: tuple[tuple[Slot, int], ...] = (), fail: frozenset[OpKind] = frozenset()
    ) -> tuple[KvOp, ...]:
        """Operations, then rows for these slots up to these lengths. Answers the operations."""
        for slot, length in rows:
            assert self.ledger.reserve(slot, length)
        ops = self.ledger.take_ops(self.tick_id)
        check_order(ops)
        results = []
        for op in ops:
            if op.kind in fail:
                self.memory.damage(op)
                results.append(OpResult(ok=False))
            else:
                results.append(self.memory.execute(op))
        broken = {op.sequence for op in ops if op.kind in fail}
        ran = [(slot, length) for slot, length in rows if slot.sequence not in broken]
        if ran:
            self.memory.begin_pass()
        for slot, length in ran:
            tokens = slot.known[slot.computed : length]
            cells = self.model.cells(slot.job.scope, tokens)
            self.memory.append(slot.sequence, slot.computed, cells)
        self.rebuilt = self.ledger.settle(self.tick_id, results, ran=bool(ran)).rebuild
        for slot, length in ran:
            slot.computed = slot.planned = length
        self.tick_id += 1
        self.ledger.check()
        return ops

    def run(self, job: Job, length: int, source: Source | None = None) -> Slot:
        slot = self.open(job, source)
        self.tick(rows=((slot, length),))
        return slot

    def close(self, slot: Slot, keep: int | None = None, *, private: bool = False) -> None:
        self.ledger.close(slot, slot.computed if keep is None else keep, private=private)
        slot.clear()
        self.ledger.check()

    def holds(self, slot: Slot) -> bool:
        right = self.model.cells(slot.job.scope, slot.known[: slot.computed])
        return self.memory.content(slot.sequence, slot.computed) == right.tobytes()


def kinds(ops: tuple[KvOp, ...]) -> list[str]:
    return [op.kind.name for op in ops]
