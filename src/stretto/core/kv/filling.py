"""Fills a sequence with the prefix that a request starts from: in place, by a copy, or from a snapshot.

Only plans: sets the operations of the sequence (`trim`, `copy`, `incoming`, `clear`) and keeps the counts of
prefixes and cells in step with them. `matching` and the cache policy have chosen the source before.
"""

from __future__ import annotations

from stretto.core import event_names
from stretto.core.kv.cells import CellPool
from stretto.core.kv.ledger import PrefixKind, Source
from stretto.core.kv.prefix_store import CachedPrefix, PrefixStore
from stretto.core.kv.sequence import Sequence, SequenceTable
from stretto.core.kv.snapshots import Snapshots
from stretto.core.ops import KvOp, OpKind
from stretto.core.slot import Job
from stretto.core.tick import Note


class SequenceFiller:
    def __init__(
        self,
        table: SequenceTable,
        store: PrefixStore,
        snapshots: Snapshots,
        *,
        cells: CellPool | None,
        notes: list[Note],
        keeps: bool,
    ) -> None:
        """`cells` of a unified pool. `keeps`: other requests may reuse what a request leaves."""
        self._table = table
        self._store = store
        self._snapshots = snapshots
        self._cells = cells
        self._notes = notes
        self._keeps = keeps
        self._copies = 0

    def start_empty(self, target: Sequence, job: Job) -> int:
        self._snapshots.evacuate(target, 0)
        self.empty(target)
        target.prefix = CachedPrefix(job.known, 0, job.scope)
        return 0

    def adopt(self, target: Sequence, job: Job, length: int) -> int:
        prefix = target.prefix
        assert prefix is not None
        self._snapshots.evacuate(target, length)
        if length < prefix.length:
            if self._table.can_trim(prefix, length):
                target.trim = length
            else:
                checkpoint = prefix.nearest(length)
                assert checkpoint is not None
                target.incoming = (KvOp(OpKind.REWIND, target.index, length=length, blob=checkpoint.blob),)
                prefix.reset_to(length)
            target.unsettled = True
            self._store.trim(prefix, length)
            if self._cells is not None:
                self._cells.trim(target.index, length)
        prefix.tokens, prefix.owner, prefix.reserved_for = job.known, "", ""
        return length

    def bring(self, target: Sequence, job: Job, source: Source) -> int:
        """Copy or restore into a sequence that does not hold the prefix yet."""
        self._snapshots.evacuate(target, 0)
        donor = self._table.all[source.place] if source.kind is not PrefixKind.SNAPSHOT else None
        if donor is not None and self._table.can_copy(donor, source.length):
            prefix = self.copy(donor, target, source.length)
            if donor.slot is not None:
                self._notes.append(Note(event_names.COPIED_RUNNING, job.id, donor.slot.index, source.length))
        else:
            blob = source.place if donor is None else self._snapshots.save(donor, donor.held)
            if blob is None:
                return self.start_empty(target, job)
            if donor is not None:
                self._snapshots.pin(blob)  # saved from a running sequence, to be restored in the same tick
                if not self._keeps:
                    self._snapshots.own(blob, job.id)  # no other request may find it
            prefix = self._restore(target, blob, source.length)
        prefix.tokens = job.known
        target.prefix = prefix
        target.unsettled = True
        return source.length

    def copy(self, donor: Sequence, target: Sequence, length: int) -> CachedPrefix:
        assert donor.prefix is not None
        prefix = self._store.fork(donor.prefix, length)
        self.empty(target)
        target.clear = False  # a copy empties its target itself
        target.copy = KvOp(OpKind.COPY, target.index, donor.index, length)
        self._copies += 1
        target.copy_order = self._copies
        self._table.copying.append((donor.index, target.index))
        if self._cells is not None:
            self._cells.share(donor.index, target.index, length)
        return prefix

    def _restore(self, target: Sequence, blob: int, length: int) -> CachedPrefix:
        snapshot = self._store.get(blob)
        assert snapshot is not None
        prefix = self._store.fork(snapshot.prefix, length)
        self.empty(target)
        target.incoming = (KvOp(OpKind.RESTORE, target.index, length=length, blob=blob),)
        if not self._table.can_trim(snapshot.prefix, length):
            checkpoint = prefix.checkpoints[-1]
            whole = KvOp(OpKind.RESTORE, target.index, length=snapshot.prefix.length, blob=blob)
            target.incoming = (whole, KvOp(OpKind.REWIND, target.index, length=length, blob=checkpoint.blob))
            prefix.reset_to(length)
        if self._cells is not None:
            self._cells.grow(target.index, length)
        return prefix

    def empty(self, sequence: Sequence) -> None:
        """Drop what the sequence holds."""
        sequence.forget_plans()
        sequence.clear = True
        if sequence.prefix is not None:
            self._store.release(sequence.prefix)
            sequence.prefix = None
        if self._cells is not None:
            self._cells.trim(sequence.index, 0)
