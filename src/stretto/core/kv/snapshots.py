"""Snapshots and checkpoints of sequences: written, pinned for a tick, confirmed, discarded.

A snapshot is written when a prefix worth keeping is about to be overwritten, or at a length from which other
requests may start. A checkpoint is the part of a state that cannot be trimmed to later (hybrid and recurrent
models). Both exist only once their operation has succeeded. The ledger changes sequences; this part only
reads them.
"""

from __future__ import annotations

from stretto.core import event_names
from stretto.core.kv.prefix_store import CachedPrefix, Checkpoint
from stretto.core.kv.sequence import Sequence, SequenceTable
from stretto.core.limits import TARGET_S, Limits
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.core.slot import Job, Slot
from stretto.core.tick import Note

SAVE_SHARE = 1.0  # of a tick's target time may go into snapshots: computing again takes far longer


class Snapshots:
    def __init__(self, table: SequenceTable, limits: Limits) -> None:
        self._table = table
        self._store = table.store
        self._can = table.can
        self.apart = limits.cache == "system_prompt"  # entries live where no request runs
        tick_s = limits.target_itl_s or TARGET_S
        self.save_bytes_max = int(table.can.snapshot_bytes_per_s * tick_s * SAVE_SHARE)
        self._save_bytes = 0
        self._saves: list[KvOp] = []
        self._checkpointing: dict[
            int, tuple[CachedPrefix, int, str, int]
        ] = {}  # checkpoint blob -> what it is a state of
        self._pinned: list[int] = []
        self.clock = 0

    def evacuate(self, sequence: Sequence, keep: int) -> None:
        """A snapshot of what is about to be overwritten, if it is worth one and there is time and space."""
        if sequence.prefix is None or not self._table.can_save(sequence):
            return
        if self._table.loss(sequence, keep) > 0:
            self.save(sequence, sequence.prefix.length)

    def save(self, sequence: Sequence, length: int) -> int | None:
        """The blob that will hold the sequence's first `length` tokens; None when it would take too much.

        The state of a preempted request is saved whatever it takes: recomputing it takes longer.
        """
        prefix = sequence.prefix
        assert prefix is not None
        size = self._can.snapshot_bytes(length)
        if self._save_bytes and self._save_bytes + size > self.save_bytes_max and not prefix.reserved_for:
            return None
        copy = self._store.fork(prefix, length, prefix.owner)
        copy.reserved_for = prefix.reserved_for
        snapshot = self._store.add(copy, size, self.clock)
        if snapshot is None:
            self._store.release(copy)
            return None
        self._save_bytes += size
        self._saves.append(KvOp(OpKind.SAVE, sequence.index, length=length, blob=snapshot.id))
        return snapshot.id

    def pin(self, blob: int) -> None:
        """Keep a snapshot until the tick that is being planned has settled."""
        snapshot = self._store.get(blob)
        assert snapshot is not None
        snapshot.pins += 1
        snapshot.last_used = self.clock
        self._pinned.append(blob)

    def own(self, blob: int, request_id: str) -> None:
        """Only this request may use the snapshot, and it goes when the request does."""
        snapshot = self._store.get(blob)
        assert snapshot is not None
        snapshot.prefix.owner = request_id

    def unpin(self, blobs: list[int]) -> None:
        for blob in blobs:
            snapshot = self._store.get(blob)
            if snapshot is not None:
                snapshot.pins -= 1

    def checkpoint(self, slot: Slot, job: Job, length: int) -> None:
        """The slot has computed exactly `length` tokens, at which its state is to be saved."""
        sequence = self._table.of(slot)
        prefix = sequence.prefix
        assert prefix is not None
        assert sequence.held == length
        if not self._table.can_save(sequence):
            return
        if length == self._table.branch_point(job) and not self._is_saved(prefix, length):
            self.save(sequence, length)
        if not self.apart and all(c.length != length for c in prefix.checkpoints):
            blob = self._store.add_checkpoint(self._can.state_bytes)
            if blob is not None:
                self._checkpointing[blob] = (prefix, length, job.id, slot.index)
                self._saves.append(KvOp(OpKind.CHECKPOINT, sequence.index, length=length, blob=blob))

    def _is_saved(self, prefix: CachedPrefix, length: int) -> bool:
        return any(s.prefix.length == length and s.prefix.covers(prefix) for s in self._store)

    def take(self) -> tuple[list[KvOp], list[int]]:
        """Operations on blobs of this tick, and the snapshots to keep until it is settled."""
        unborn = {op.blob for op in self._saves} & set(self._store.dropped)  # saved and given up in one plan
        for blob in unborn:
            self._checkpointing.pop(blob, None)
        ops = [op for op in self._saves if op.blob not in unborn]
        ops += [KvOp(OpKind.DROP, blob=blob) for blob in self._store.dropped if blob not in unborn]
        pinned = self._pinned
        self._saves, self._store.dropped, self._pinned, self._save_bytes = [], [], [], 0
        return ops, pinned

    def settle(self, op: KvOp, result: OpResult) -> Note | None:
        """A SAVE, CHECKPOINT or DROP has come back."""
        if op.kind is OpKind.DROP:
            if not result.ok:
                self._store.dropped.append(op.blob)
            return None
        if op.kind is OpKind.CHECKPOINT:
            return self._settle_checkpoint(op, result)
        if not result.ok:
            self._store.discard(op.blob, exists=False)
            return None
        self._store.confirm(op.blob, result.bytes)
        return Note(event_names.CACHE_SAVED, "", -1, result.bytes)

    def _settle_checkpoint(self, op: KvOp, result: OpResult) -> Note:
        prefix, length, request_id, slot = self._checkpointing.pop(op.blob)
        if result.ok and any(s.prefix is prefix for s in self._table.all):
            self._store.attach(prefix, Checkpoint(length, op.blob))
        self._store.forget_checkpoint(op.blob, exists=result.ok)
        return Note(
            event_names.HYBRID_SNAPSHOT if result.ok else event_names.HYBRID_SNAPSHOT_FAILED,
            request_id,
            slot,
            result.bytes,
        )

    def discard(self, blob: int) -> None:
        """It failed to restore, and is not tried again."""
        self._store.discard(blob)
        for prefix in self._table.prefixes():
            self._store.detach(prefix, blob)

    def came_back(self, request_id: str) -> None:
        """A preempted request has resumed or ended: its state is no longer reserved."""
        for prefix in self._table.prefixes():
            if prefix.reserved_for == request_id:
                prefix.reserved_for = ""

    def blobs(self) -> list[int]:
        """Blobs that the backend holds between two ticks: the known ones, and those about to be dropped."""
        unborn = {op.blob for op in self._saves}
        return sorted({*self._store.blobs(), *self._store.dropped} - unborn)
