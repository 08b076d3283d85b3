"""The state of sequences: what each holds, which slot runs in it, and its pending operations.

Operations are not queued one by one: a sequence records what it must become, and `ops` derives the
operations. So a sequence that is cleared and refilled between two ticks is not cleared after it was filled.
`SequenceTable` answers questions about all sequences and changes nothing; the ledger does.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.kv.ledger import PrefixKind, Source
from stretto.core.kv.prefix_store import CachedPrefix, Checkpoint, PrefixStore
from stretto.core.limits import Limits
from stretto.core.ops import KvOp, OpKind
from stretto.core.slot import Job, Slot


class Sequence:
    __slots__ = (
        "clear",
        "copy",
        "copy_order",
        "incoming",
        "index",
        "last_used",
        "prefix",
        "slot",
        "trim",
        "unsettled",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.slot: Slot | None = None
        self.prefix: CachedPrefix | None = None
        self.last_used = 0
        self.unsettled = False  # an operation on it has not been confirmed
        self.copy: KvOp | None = None
        self.copy_order = 0  # copies run in the order in which they were planned
        self.trim: int | None = None
        self.clear = False
        self.incoming: tuple[KvOp, ...] = ()  # RESTORE, REWIND

    @property
    def held(self) -> int:
        """Tokens whose KV is certain."""
        return self.prefix.length if self.prefix is not None else 0

    @property
    def readable(self) -> bool:
        """Can it be copied from in this plan? Copies run before trims, so a pending trim does not matter."""
        if not self.unsettled:
            return True
        only_trimmed = self.trim is not None and self.copy is None and not self.incoming and not self.clear
        return only_trimmed and self.slot is not None

    def run(self, slot: Slot) -> None:
        """A request runs in this sequence: its prefix grows as the slot computes."""
        assert self.prefix is not None
        self.slot = self.prefix.slot = slot

    def forget_plans(self) -> None:
        self.copy, self.trim, self.clear, self.incoming = None, None, False, ()

    def ops(self) -> Iterator[KvOp]:
        if self.copy is not None:
            yield self.copy
        if self.trim is not None:
            yield KvOp(OpKind.TRIM, self.index, length=self.trim)
        if self.clear:
            yield KvOp(OpKind.CLEAR, self.index)
        yield from self.incoming


class SequenceTable:
    """All sequences, their snapshots, and copies that no pass has carried out yet."""

    def __init__(self, capabilities: Capabilities, store: PrefixStore, limits: Limits) -> None:
        self.can = capabilities
        self.all = [Sequence(index) for index in range(capabilities.sequences_max)]
        self.store = store
        self.copying: list[tuple[int, int]] = []
        self._worth_tokens = limits.cache_min_tokens
        self._only_copies: dict[int, tuple[CachedPrefix, int]] = {}  # found in this plan to be the only copy
        self._branches = limits.cache in ("system_prompt", "prefix")

    def of(self, slot: Slot) -> Sequence:
        return self.all[slot.sequence]

    def prefixes(self) -> list[CachedPrefix]:
        """Of sequences and of snapshots."""
        return [s.prefix for s in self.all if s.prefix is not None] + [s.prefix for s in self.store]

    def idle(self) -> list[Sequence]:
        return [s for s in self.all if s.slot is None]

    def idle_prefixes(self) -> list[Sequence]:
        """Idle sequences with content, in order of eviction: by last use, preempted requests' last."""
        held = [(s, s.prefix) for s in self.all if s.slot is None and s.prefix is not None]
        held.sort(key=lambda pair: (pair[1].reserved_for != "", pair[0].last_used, pair[0].index))
        return [sequence for sequence, _ in held]

    def pick(self, source: Source | None) -> Sequence | None:
        """The idle sequence whose use loses least and leaves the running ids in fewest runs."""
        idle = self.idle()
        if source is not None:
            donor = self.all[source.place] if source.kind is not PrefixKind.SNAPSHOT else None
            copies = donor is not None and self.can_copy(donor, source.length)
            if donor is not None and donor.slot is None and not copies:
                return donor  # it can only be continued in place
            if not copies:
                idle = [s for s in idle if not self.is_copy_end(s.index)]
        if self.can.contiguous and self.can.snapshots:  # losses are saved first, so only positions count
            fewest = min((self.runs_with(s.index) for s in idle), default=0)
            idle = [s for s in idle if self.runs_with(s.index) == fewest]
        return min(idle, key=lambda s: self._price(s, source), default=None)

    def _price(self, sequence: Sequence, source: Source | None) -> tuple[int, ...]:
        adopts = source is not None and source.kind is PrefixKind.RESIDENT and source.place == sequence.index
        loss = self.loss(sequence, source.length if source is not None and adopts else 0)
        runs = self.runs_with(sequence.index) if self.can.contiguous and not self.can.snapshots else 0
        return (loss, runs, 0 if adopts else 1, sequence.last_used, sequence.index)

    def is_copy_target(self, index: int) -> bool:
        """Reading it now would read stale bytes."""
        return any(index == target for _, target in self.copying)

    def is_copy_end(self, index: int) -> bool:
        """Restoring into it now would corrupt one end of the copy."""
        return any(index in ends for ends in self.copying)

    def can_trim(self, prefix: CachedPrefix, length: int) -> bool:
        """Can the prefix be shortened to `length`? What a window has dropped, no trim brings back."""
        return length >= prefix.length or self.can_rewind(prefix, length)

    def can_rewind(self, prefix: CachedPrefix, length: int) -> bool:
        """As `can_trim`, where the sequence holds rows after `length` for certain."""
        if self.can.rewind is Rewind.ANY:
            return True
        return self.can.rewind is Rewind.WINDOW and prefix.peak - length <= self.can.rewind_tokens

    def reach(self, prefix: CachedPrefix, want: int) -> tuple[int, Checkpoint | None]:
        """The longest reachable length, at most `want`, and the checkpoint that it takes."""
        if self.can_trim(prefix, want):
            return min(want, prefix.length), None
        checkpoint = prefix.nearest(want)
        return (checkpoint.length, checkpoint) if checkpoint else (0, None)

    def can_copy(self, donor: Sequence, length: int) -> bool:
        if self.can.share not in (Share.COPY, Share.RANGE) or donor.held < length or donor.prefix is None:
            return False
        return self.can_trim(donor.prefix, length) and (donor.slot is None or self.can.share_from_running)

    def can_copy_by_snapshot(self, donor: Sequence, length: int) -> bool:
        """Whether saving and restoring can replace a copy."""
        if not self.can_save(donor) or donor.held < length or donor.prefix is None:
            return False
        return self.can_trim(donor.prefix, length)

    def can_save(self, sequence: Sequence) -> bool:
        """Not while a copy into it is pending: the snapshot would be stale."""
        return self.can.snapshots and not sequence.unsettled and not self.is_copy_target(sequence.index)

    def copy_s(self) -> float:
        """A copy between streams moves the whole window, not the prefix."""
        if self.can.share is Share.RANGE:
            return 0.0
        return self.can.window * self.can.bytes_per_token / self.can.copy_bytes_per_s

    def snapshot_s(self, length: int) -> float:
        return self.can.snapshot_bytes(length) / self.can.snapshot_bytes_per_s

    def loss(self, sequence: Sequence, keep: int) -> int:
        """Tokens worth keeping that are lost when the sequence is overwritten after `keep`."""
        prefix = sequence.prefix
        if prefix is None:
            return 0
        lost, worth = prefix.wanted - keep, 1 if prefix.reserved_for else self._worth_tokens
        return 0 if lost < worth or self._is_covered(sequence, prefix) else lost

    def _is_saved(self, prefix: CachedPrefix) -> bool:
        """A preempted request resumes only from its own state: an equal prefix may be rounded differently."""
        return any(
            s.prefix.reserved_for == prefix.reserved_for and s.prefix.covers(prefix) for s in self.store
        )

    def _is_covered(self, sequence: Sequence, prefix: CachedPrefix) -> bool:
        """Computed once per plan where the answer is no: a burst on n sequences would ask n² times."""
        if prefix.reserved_for:
            return self._is_saved(prefix)
        if self._only_copies.get(sequence.index) == (prefix, prefix.length):
            return False
        if self._is_held_elsewhere(sequence, prefix):
            return True
        self._only_copies[sequence.index] = (prefix, prefix.length)
        return False

    def end_plan(self) -> None:
        """Passes will run, and sequences will hold more."""
        self._only_copies.clear()

    def _is_held_elsewhere(self, sequence: Sequence, prefix: CachedPrefix) -> bool:
        for other in self.all:
            if other is sequence or other.prefix is None or other.unsettled or other.held < prefix.length:
                continue
            if other.prefix.covers(prefix):
                return True
        return any(snapshot.prefix.covers(prefix) for snapshot in self.store)

    def branch_point(self, job: Job) -> int:
        """The message boundary from which others may start: the end of the system prompt (0: none)."""
        boundaries = job.request.boundaries
        return boundaries[0] if boundaries and self._branches else 0

    def runs_with(self, index: int) -> int:
        """How many more runs of consecutive ids there are if this sequence runs, too (-1: it joins two)."""
        left = index > 0 and self.all[index - 1].slot is not None
        right = index + 1 < len(self.all) and self.all[index + 1].slot is not None
        return 1 - left - right

    def gap(self) -> tuple[Sequence | None, Sequence | None]:
        """The last running sequence, and the best idle one before it to move it into."""
        last = next((s for s in reversed(self.all) if s.slot is not None), None)
        gaps = [s for s in self.idle() if last is not None and s.index < last.index]
        return last, min(gaps, key=lambda s: (self.runs_with(s.index), s.index), default=None)

    def can_move(self, sequence: Sequence) -> bool:
        """Not while an operation on it is pending, nor when its state is about to be saved."""
        slot = sequence.slot
        if slot is None or sequence.unsettled or sequence.trim is not None or slot.computed == 0:
            return False
        return slot.planned not in slot.checkpoint_at and not self.is_copy_target(sequence.index)

    def check(self) -> None:
        seen: dict[int, int] = {}
        for sequence in self.all:
            slot = sequence.slot
            if slot is not None:
                assert slot.sequence == sequence.index, f"slot {slot.index} is not where it runs"
                assert slot.index not in seen, f"slot {slot.index} runs in two sequences"
                assert sequence.prefix is not None, "a running sequence without prefix"
                seen[slot.index] = sequence.index
