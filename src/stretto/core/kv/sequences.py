"""The ledger for llama.cpp: sequences in streams or unified layout, and snapshots in host memory.

The cache has tiers. What idle and running sequences hold costs nothing. Snapshots take bytes of
`cache_ram_bytes` and are written only when a prefix worth keeping is about to be overwritten, or at a length
that the cache policy asks for. A slot starts from the source that the policy chose by continuing in place,
restoring or copying. A copy between streams happens only when the next pass runs: until then its target is
not read, and neither end is restored into.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from stretto.core import event_names
from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.kv import matching
from stretto.core.kv.cells import CellPool
from stretto.core.kv.filling import SequenceFiller
from stretto.core.kv.ledger import CachedList, Match, PrefixKind, Settled, Source
from stretto.core.kv.prefix_store import CachedPrefix, PrefixStore
from stretto.core.kv.sequence import Sequence, SequenceTable
from stretto.core.kv.snapshots import Snapshots
from stretto.core.limits import Limits, is_exact
from stretto.core.ops import WRITES, KvOp, OpKind, OpResult
from stretto.core.slot import Job, Slot, Status
from stretto.core.tick import Note, TableUpdate

CELLS_STEP = 16  # a growing slot reserves this many cells of a unified pool at a time
IDLE_CELLS_SHARE = 0.25  # idle cells slow every tick of a unified pool
GAP_TICKS = 4  # a gap in the running ids costs 3 to 6 ms a tick, closing it one copy
NO_POOL = 1 << 40


class SequenceLedger:
    def __init__(self, capabilities: Capabilities, limits: Limits) -> None:
        self._can = capabilities
        self._limits = limits
        self.store = PrefixStore(limits.cache_ram_bytes)
        self.table = SequenceTable(capabilities, self.store, limits)
        self._cells = CellPool(capabilities.pages, capabilities.sequences_max) if capabilities.pages else None
        self._snapshots = Snapshots(self.table, limits)
        self._exact = is_exact(limits, capabilities)
        self._issued: dict[int, tuple[tuple[KvOp, ...], list[int]]] = {}  # tick -> operations, pinned blobs
        self._clock = 0
        self._gap_ticks = 0
        self.notes: list[Note] = []
        self._filler = SequenceFiller(
            self.table,
            self.store,
            self._snapshots,
            cells=self._cells,
            notes=self.notes,
            keeps=limits.cache in ("incremental", "prefix"),
        )

    def match(self, job: Job) -> Match:
        return matching.match(self.table, job)

    def cached(self, tokens_max: int) -> CachedList:
        used = [(s.last_used, s.prefix) for s in self.table.all if s.prefix is not None]
        used += [(snapshot.last_used, snapshot.prefix) for snapshot in self.store if snapshot.ready]
        found = CachedList([], complete=True)
        for _, prefix in sorted(used, key=lambda item: -item[0]):
            length = min(prefix.length, prefix.prefilled)
            if length <= 0 or prefix.owner:
                continue
            if length > tokens_max:
                return found._replace(complete=False)
            tokens_max -= length
            found.prefixes.append((prefix.scope, prefix.tokens[:length]))
        return found

    # --- opening ---------------------------------------------------------------------------------

    def open(self, slot: Slot, job: Job, source: Source | None) -> bool:
        self._clock += 1
        self._snapshots.clock = self._clock
        target = self.table.pick(source)
        if target is None:  # every idle sequence is an end of a copy: nothing can be restored into one
            source, target = None, self.table.pick(None)
        if source is not None and source.kind is PrefixKind.SNAPSHOT:
            self._snapshots.pin(source.place)  # making room for others must not drop it
        if target is not None and not self._fits(target, source):
            source, target = None, self.table.pick(None)  # a restore that does not fit: begin with nothing
        if target is None:
            return False
        if source is None:
            length = self._filler.start_empty(target, job)
        elif source.kind is PrefixKind.RESIDENT and source.place == target.index:
            length = self._filler.adopt(target, job, source.length)
        else:
            length = self._filler.bring(target, job, source)
        if job.preemptions:
            self._snapshots.came_back(job.id)
        if self._exact and target.prefix is not None:
            target.prefix.written_by(job)
        slot.sequence = target.index
        slot.computed = slot.planned = length
        target.run(slot)
        target.last_used = self._clock
        slot.room = self._can.window if self._cells is None else self._cells.held(target.index)
        return True

    def checkpoint_at(self, job: Job, lengths: Seq[int]) -> tuple[int, ...]:
        """Lengths at which state is saved on the way, because it cannot be trimmed to them later."""
        if not self._can.snapshots or (self._can.rewind is Rewind.ANY and not self._snapshots.apart):
            return ()
        return tuple(n for n in lengths if self._limits.cache_min_tokens <= n < len(job.known) - 1)

    def checkpoint(self, slot: Slot, length: int) -> None:
        assert slot.job is not None
        self._snapshots.checkpoint(slot, slot.job, length)

    # --- growing and shrinking -------------------------------------------------------------------

    def reserve(self, slot: Slot, length: int) -> bool:
        if length <= slot.room:
            return True
        if self._cells is None:
            return False  # a stream has its fixed window
        held = self._cells.held(slot.sequence)
        for count in (-(-(length - held) // CELLS_STEP) * CELLS_STEP, length - held):
            if self._evict_for(count) and self._cells.grow(slot.sequence, count):
                slot.room = held + count
                return True
        return False

    def _fits(self, target: Sequence, source: Source | None) -> bool:
        """In a unified pool only a restore takes cells at once; prompts take theirs chunk by chunk."""
        if self._cells is None or source is None or source.kind is PrefixKind.RESIDENT:
            return True
        if source.kind is PrefixKind.RUNNING and self.table.can_copy(
            self.table.all[source.place], source.length
        ):
            return True
        snapshot = self.store.get(source.place) if source.kind is PrefixKind.SNAPSHOT else None
        whole = snapshot.prefix.length if snapshot is not None else self.table.all[source.place].held
        return self._evict_for(whole - self._cells.gain(target.index), sparing=target)

    def _evict_for(self, count: int, *, sparing: Sequence | None = None) -> bool:
        assert self._cells is not None
        while self._cells.free < count:
            idle = [s for s in self.table.idle_prefixes() if s is not sparing]
            if not idle:
                return False
            self._evict(idle[0])
        return True

    def _evict(self, sequence: Sequence) -> None:
        self._snapshots.evacuate(sequence, 0)
        self._filler.empty(sequence)
        self.notes.append(Note(event_names.CACHE_EVICTED, "", -1, sequence.index))

    def relieve(self) -> bool:
        """The backend found no room although the ledger has some: evict one idle entry."""
        idle = self.table.idle_prefixes()
        if idle:
            self._evict(idle[0])
        return bool(idle)

    def room_for(self, tokens: int) -> int:
        return tokens if self._cells is not None else 0

    def room_shared(self, job: Job, source: Source | None) -> int:
        if self._cells is None or source is None or source.kind is not PrefixKind.RUNNING:
            return 0
        return source.length if self.table.can_copy(self.table.all[source.place], source.length) else 0

    def room_free(self) -> int:
        if self._cells is None:
            return NO_POOL
        return self._cells.total - self._cells.used_by(s.index for s in self.table.all if s.slot is not None)

    def room_gain(self, slots: Seq[Slot]) -> int:
        if self._cells is None:
            return 0
        running = [s.index for s in self.table.all if s.slot is not None]
        rest = [s.index for s in self.table.all if s.slot is not None and s.slot not in slots]
        return self._cells.used_by(running) - self._cells.used_by(rest)

    def rollback(self, slot: Slot, length: int) -> None:
        """The backend holds rows up to `planned`; those after `length` are rejected drafts or failed rows."""
        sequence = self.table.of(slot)
        prefix = sequence.prefix
        assert prefix is not None
        prefix.held(slot.planned)
        if self.table.can_rewind(prefix, length):
            sequence.trim = length
        else:
            self.lose(slot.sequence)

    def overrun(self, slot: Slot) -> None:
        """A pass failed: some planned rows were there for a while, and a sliding window has moved on."""
        prefix = self.table.of(slot).prefix
        assert prefix is not None
        prefix.held(slot.planned)

    def committed(self, slot: Slot) -> None:
        """Nothing to record: a prefix follows what its slot has computed."""

    def close(self, slot: Slot, keep: int, *, private: bool = False) -> None:
        sequence, job = self.table.of(slot), slot.job
        prefix = sequence.prefix
        assert prefix is not None
        assert job is not None
        prefix.stop()
        keep = min(keep, prefix.length)
        sequence.slot = None
        sequence.last_used = self._clock
        if private:
            prefix.owner = job.id
        if job.status is Status.PREEMPTED:
            prefix.reserved_for = job.id
        apart = self._snapshots.apart and not private  # what is kept of it is a snapshot already
        if keep <= 0 or apart or sequence.unsettled or self._is_invalid(prefix, slot, job):
            self._filler.empty(sequence)
            sequence.unsettled = False
        elif self._cells is not None:
            self._cells.trim(sequence.index, prefix.length)
            self._cap_idle()
        slot.sequence = -1

    def _is_invalid(self, prefix: CachedPrefix, slot: Slot, job: Job) -> bool:
        """A hybrid model's conversation without a checkpoint to rewind to is not kept."""
        if self._limits.cache != "incremental" or self._can.rewind is not Rewind.CHECKPOINT:
            return False
        if job.status is Status.PREEMPTED:
            return False
        last = job.request.boundaries[-1] if job.request.boundaries else 0
        if not last or last < self._limits.cache_min_tokens or prefix.nearest(last):
            return False
        self.notes.append(Note(event_names.HYBRID_NO_SNAPSHOT, job.id, slot.index, prefix.length))
        return True

    def _cap_idle(self) -> None:
        assert self._cells is not None
        cap = int(self._cells.total * IDLE_CELLS_SHARE)
        idle = self.table.idle_prefixes()
        running = self._cells.used_by(s.index for s in self.table.all if s.slot is not None)
        while idle and self._cells.total - self._cells.free - running > cap:
            self._evict(idle.pop(0))

    def forget(self, request_id: str) -> None:
        """The request has ended: drop what only it could use."""
        for sequence in self.table.idle():
            if sequence.prefix is not None and sequence.prefix.owner == request_id:
                self._filler.empty(sequence)
        self.store.discard_owned(request_id)
        self._snapshots.came_back(request_id)

    # --- keeping running ids together ------------------------------------------------------------

    def compact(self, slots: Seq[Slot]) -> None:
        """Close a lasting gap by moving the last running sequence into it, at most one per tick."""
        if not self._can.contiguous or self._can.share is not Share.COPY or not self._can.share_from_running:
            return
        last, gap = self.table.gap()
        self._gap_ticks = self._gap_ticks + 1 if gap is not None else 0
        if gap is not None and last is not None and self._gap_ticks > GAP_TICKS and self.table.can_move(last):
            self._move(last, gap)
            self._gap_ticks = 0

    def _move(self, source: Sequence, target: Sequence) -> None:
        slot = source.slot
        assert slot is not None
        assert source.prefix is not None
        self._snapshots.evacuate(target, 0)
        prefix = self._filler.copy(source, target, slot.computed)
        prefix.tokens = slot.known
        source.prefix.stop()
        source.slot = None
        self._filler.empty(source)
        target.prefix, target.unsettled = prefix, True
        target.run(slot)
        target.last_used = source.last_used
        slot.sequence = target.index
        job_id = slot.job.id if slot.job is not None else ""
        self.notes.append(Note(event_names.SEQUENCE_MOVED, job_id, slot.index, target.index))

    # --- operations ------------------------------------------------------------------------------

    def take_ops(self, tick_id: int) -> tuple[KvOp, ...]:
        ops, pinned = self._snapshots.take()
        planned = [
            s for s in self.table.all if s.clear or s.trim is not None or s.copy is not None or s.incoming
        ]
        for sequence in sorted(planned, key=lambda s: s.copy_order):
            ops.extend(sequence.ops())
            sequence.forget_plans()
        issued = tuple(sorted(ops, key=lambda op: op.kind))
        self._issued[tick_id] = (issued, pinned)
        self.table.end_plan()
        return issued

    def take_tables(self) -> tuple[TableUpdate, ...]:
        return ()

    def settle(self, tick_id: int, results: Seq[OpResult], *, ran: bool) -> Settled:
        ops, pinned = self._issued.pop(tick_id)
        self._snapshots.unpin(pinned)
        broken: dict[int, None] = {}
        for op, result in zip(ops, results, strict=True):
            if op.kind in WRITES:
                self._settle_write(op, result, broken)
            elif (note := self._snapshots.settle(op, result)) is not None:
                self.notes.append(note)
        if ran or self._can.share is not Share.COPY:
            self.table.copying.clear()
        for sequence in self.table.all if ops else ():
            sequence.unsettled = False
        return Settled([slot for index in broken if (slot := self.lose(index)) is not None])

    def _settle_write(self, op: KvOp, result: OpResult, broken: dict[int, None]) -> None:
        slot = self.table.all[op.sequence].slot
        restores = op.kind in (OpKind.RESTORE, OpKind.REWIND)
        if restores:
            request_id = slot.job.id if slot is not None and slot.job is not None else ""
            name = event_names.HYBRID_RESTORE if result.ok else event_names.HYBRID_RESTORE_FAILED
            if self._can.rewind is Rewind.CHECKPOINT:
                self.notes.append(Note(name, request_id, slot.index if slot else -1, result.bytes))
        if not result.ok:
            broken[op.sequence] = None
            if restores:
                self._snapshots.discard(op.blob)

    def lose(self, sequence: int) -> Slot | None:
        """What the sequence holds is unknown. Its slot, if any, starts again from nothing."""
        lost = self.table.all[sequence]
        slot, prefix = lost.slot, lost.prefix
        self._filler.empty(lost)
        if slot is not None and prefix is not None:
            lost.prefix = CachedPrefix(slot.known, 0, prefix.scope)
            lost.prefix.prefilled, lost.prefix.author = prefix.prefilled, prefix.author
            slot.computed = slot.planned = 0
            lost.run(slot)
            slot.room = self._can.window if self._cells is None else 0
        return slot

    def blobs(self) -> list[int]:
        return self._snapshots.blobs()

    @property
    def host_bytes(self) -> int:
        return self.store.bytes_used

    @property
    def save_bytes_max(self) -> int:
        return self._snapshots.save_bytes_max

    def check(self) -> None:
        self.table.check()
        for sequence in self.table.all if self._cells is not None else ():
            held = self._cells.held(sequence.index) if self._cells is not None else 0
            assert held >= sequence.held, "tokens without cells"
            assert held == 0 or sequence.prefix is not None, f"sequence {sequence.index} leaks cells"
        if self._cells is not None:
            self._cells.check()
        self.store.check()
