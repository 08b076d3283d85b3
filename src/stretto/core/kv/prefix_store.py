"""The prefix store: which computed prefixes can be reused, and how much of a prompt each covers.

A `CachedPrefix` is a run of tokens whose KV exists: in a sequence, or as a snapshot in host memory. Snapshots
share one byte budget and are evicted least recently used first, those of preempted requests last. Matching
compares token ids only, within one scope. The store issues no operations; the ledger confirms snapshots.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from stretto.core.request import Scope
from stretto.core.slot import NEVER, Job, Slot

CHECKPOINTS_MAX = 8

NARROW = 16


def common_prefix(left: array[int], right: array[int], limit: int) -> int:
    """How many leading tokens are equal, at most `limit`. Slices compare in C, the last few here."""
    limit = min(limit, len(left), len(right))
    if limit <= 0 or left[0] != right[0]:
        return 0
    if left[:limit] == right[:limit]:
        return limit
    low, high = 1, limit  # equal before low, different somewhere before high
    while high - low > NARROW:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    while left[low] == right[low]:
        low += 1
    return low


class Checkpoint(NamedTuple):
    """A saved state that trimming cannot reproduce: valid for the first `length` tokens."""

    length: int
    blob: int


class CachedPrefix:
    """Tokens whose KV exists. `owner`: the id of the only request that may use it, or empty.

    `reserved_for`: the preempted request that will resume from it. Recomputed in other batches the same
    tokens may round differently, so it is evicted last.
    `prefilled`, `author`: KV after the first `prefilled` tokens was written by decode rows, and only the
    request that generated them (`author`, its arrival number) may reuse it. NEVER where decode rows are
    batch-invariant.
    """

    __slots__ = (
        "_length",
        "_peak",
        "author",
        "checkpoints",
        "owner",
        "prefilled",
        "reserved_for",
        "scope",
        "slot",
        "tokens",
    )

    def __init__(self, tokens: array[int], length: int, scope: Scope, owner: str = "") -> None:
        self.tokens = tokens
        self.scope = scope
        self.owner = owner
        self.slot: Slot | None = None  # the slot that computes more of it
        self.reserved_for = ""
        self.prefilled = NEVER
        self.author = -1
        self.checkpoints: list[Checkpoint] = []
        self._length = length
        self._peak = length

    @property
    def length(self) -> int:
        """Tokens whose KV is certain. While a request runs here, its slot knows."""
        return self._length if self.slot is None else self.slot.computed

    @property
    def peak(self) -> int:
        """The most tokens it ever held: a sliding window has dropped what lies far before them."""
        return max(self._peak, self.length)

    def held(self, tokens: int) -> None:
        """It held so many tokens for a while, whatever is left of them."""
        self._peak = max(self._peak, tokens)

    def shorten(self, length: int) -> None:
        assert self.slot is None, "a prefix is shortened while a request runs in it"
        self._length = length

    def reset_to(self, length: int) -> None:
        """A saved state was brought back: nothing after `length` was ever there."""
        self._length = self._peak = length

    def stop(self) -> None:
        """The slot releases it: what was computed stays."""
        self._length, self._peak, self.slot = self.length, self.peak, None

    @property
    def shared(self) -> int:
        """Tokens that requests other than the author may use."""
        return min(self.length, self.prefilled)

    @property
    def wanted(self) -> int:
        """Tokens that some request may reuse."""
        return self.length if self.reserved_for else self.shared

    def usable(self, job: Job) -> int:
        """Tokens that this request may start from.

        Never KV that decode rows of other requests wrote, nor other requests' KV in place of its own decode
        rows.
        """
        if self.prefilled == NEVER or self.author == job.arrival:
            return self.length
        return min(self.shared, job.prompt_tokens)

    def written_by(self, job: Job) -> None:
        """From here on rows of this request are added."""
        self.prefilled, self.author = job.prompt_tokens, job.arrival

    def visible_to(self, scope: Scope, request_id: str) -> bool:
        return self.scope == scope and self.owner in ("", request_id)

    def covers(self, other: CachedPrefix) -> bool:
        """Does this hold all tokens of `other`, for every request that may use `other`?"""
        last = other.wanted - 1
        have = self.length if self.author == other.author else self.shared
        if last >= have or self.scope != other.scope or self.owner not in ("", other.owner):
            return False
        if last >= 0 and self.tokens[last] != other.tokens[last]:
            return False  # the usual case: conversations start alike and end differently
        return common_prefix(self.tokens, other.tokens, last + 1) == last + 1

    def nearest(self, length: int) -> Checkpoint | None:
        """The longest checkpoint at or before `length`."""
        return max((c for c in self.checkpoints if c.length <= length), default=None)


class Snapshot:
    """A blob in host memory. It can be matched once `ready`; while `pins` > 0 it is not evicted.

    `due`: it was written for a preempted request, which may resume from it in the same tick.
    """

    __slots__ = ("bytes", "due", "id", "last_used", "pins", "prefix", "ready")

    def __init__(self, blob: int, prefix: CachedPrefix, size: int, now: int) -> None:
        self.id = blob
        self.prefix = prefix
        self.bytes = size
        self.due = prefix.reserved_for != ""
        self.last_used = now
        self.pins = 0
        self.ready = False


class PrefixStore:
    """Snapshots and checkpoints under one byte budget. The ledger collects ids of dropped blobs."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.dropped: list[int] = []
        self._snapshots: dict[int, Snapshot] = {}
        self._state_bytes: dict[int, int] = {}  # checkpoint blob -> bytes
        self._state_refs: dict[int, int] = {}
        self._next_blob = 0

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._snapshots.values())

    def get(self, blob: int) -> Snapshot | None:
        return self._snapshots.get(blob)

    def blobs(self) -> list[int]:
        """Every blob that a backend should hold once all operations have run."""
        return sorted([*self._snapshots, *self._state_bytes])

    # --- snapshots -------------------------------------------------------------------------------

    def add(self, prefix: CachedPrefix, size: int, now: int) -> Snapshot | None:
        """A new snapshot, not ready yet, of a prefix that the store now owns; None when it does not fit."""
        if not self._make_room(size):
            return None
        snapshot = Snapshot(self._take_id(), prefix, size, now)
        self._snapshots[snapshot.id] = snapshot
        self.bytes_used += size
        return snapshot

    def confirm(self, blob: int, size: int) -> None:
        snapshot = self._snapshots.get(blob)
        if snapshot is not None:
            self.bytes_used += size - snapshot.bytes
            snapshot.bytes = size
            snapshot.ready = True
            self._make_room(0)

    def discard(self, blob: int, *, exists: bool = True) -> None:
        """Forget a snapshot. `exists` is False when its SAVE failed, so there is nothing to drop."""
        snapshot = self._snapshots.pop(blob, None)
        if snapshot is None:
            return
        self.bytes_used -= snapshot.bytes
        self.release(snapshot.prefix)
        if exists:
            self.dropped.append(blob)

    def discard_owned(self, owner: str) -> None:
        for blob in [s.id for s in self if s.prefix.owner == owner]:
            self.discard(blob)

    # --- checkpoints -----------------------------------------------------------------------------

    def add_checkpoint(self, size: int) -> int | None:
        """A blob id for a state; `attach` adds it to a prefix once it is written."""
        if not self._make_room(size):
            return None
        blob = self._take_id()
        self._state_bytes[blob] = size
        self._state_refs[blob] = 0
        self.bytes_used += size
        return blob

    def attach(self, prefix: CachedPrefix, checkpoint: Checkpoint) -> None:
        """The checkpoint is written, and the prefix may use it. Beyond the limit the second shortest goes."""
        prefix.checkpoints.append(checkpoint)
        prefix.checkpoints.sort()
        self._state_refs[checkpoint.blob] += 1
        if len(prefix.checkpoints) > CHECKPOINTS_MAX:
            self._unref(prefix.checkpoints.pop(1).blob)

    def detach(self, prefix: CachedPrefix, blob: int) -> None:
        """A checkpoint that failed to restore is not tried again through this prefix."""
        kept = [c for c in prefix.checkpoints if c.blob != blob]
        for _ in range(len(prefix.checkpoints) - len(kept)):
            self._unref(blob)
        prefix.checkpoints = kept

    def forget_checkpoint(self, blob: int, *, exists: bool) -> None:
        """A checkpoint that was never attached: its operation failed, or its prefix is gone."""
        if self._state_refs.get(blob) == 0:
            self._drop_state(blob, exists=exists)

    def fork(self, prefix: CachedPrefix, length: int, owner: str = "") -> CachedPrefix:
        """The first `length` tokens as a separate prefix that shares checkpoints."""
        twin = CachedPrefix(prefix.tokens, length, prefix.scope, owner)
        twin.held(prefix.peak)
        twin.prefilled, twin.author = prefix.prefilled, prefix.author
        for checkpoint in prefix.checkpoints:
            if checkpoint.length <= length:
                twin.checkpoints.append(checkpoint)
                self._state_refs[checkpoint.blob] += 1
        return twin

    def trim(self, prefix: CachedPrefix, length: int) -> None:
        """Shorten a prefix; checkpoints after its new end are dropped."""
        prefix.shorten(length)
        for checkpoint in [c for c in prefix.checkpoints if c.length > length]:
            prefix.checkpoints.remove(checkpoint)
            self._unref(checkpoint.blob)

    def release(self, prefix: CachedPrefix) -> None:
        """The prefix is gone: release its checkpoints."""
        for checkpoint in prefix.checkpoints:
            self._unref(checkpoint.blob)
        prefix.checkpoints = []

    # --- inside ----------------------------------------------------------------------------------

    def _take_id(self) -> int:
        self._next_blob += 1
        return self._next_blob - 1

    def _make_room(self, size: int) -> bool:
        if size > self.bytes_max:
            return False
        while self.bytes_used + size > self.bytes_max:
            idle = [s for s in self if s.ready and not s.pins]
            if not idle:
                return False
            self.discard(min(idle, key=lambda s: (s.prefix.reserved_for != "", s.last_used, s.id)).id)
        return True

    def _unref(self, blob: int) -> None:
        self._state_refs[blob] -= 1
        if self._state_refs[blob] == 0:
            self._drop_state(blob, exists=True)

    def _drop_state(self, blob: int, *, exists: bool) -> None:
        del self._state_refs[blob]
        self.bytes_used -= self._state_bytes.pop(blob)
        if exists:
            self.dropped.append(blob)

    def check(self) -> None:
        """Budget and counts agree with what is held (called by the ledger's own check)."""
        held = sum(s.bytes for s in self) + sum(self._state_bytes.values())
        assert held == self.bytes_used, f"store counts {self.bytes_used} bytes and holds {held}"
        assert self._state_bytes.keys() == self._state_refs.keys(), "checkpoint without a reference count"
