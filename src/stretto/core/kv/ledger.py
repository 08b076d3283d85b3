"""The ledger protocol: which slot holds which KV memory, and the operations that make it so.

Two implementations: `sequences` (llama.cpp, streams or unified layout) and `pages` (torch). A ledger decides
where KV lives and emits operations; it does not decide which request runs. The scheduler calls it between
ticks, and an operation counts only once `settle` has seen it succeed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from stretto.core.ops import KvOp, OpResult
from stretto.core.request import Scope
from stretto.core.slot import Job, Slot
from stretto.core.tick import Note, TableUpdate


class PrefixKind(Enum):
    """Where a reusable prefix is, cheapest first."""

    RESIDENT = "resident"  # an idle sequence: continue in place
    PAGES = "pages"  # shared by reference
    SNAPSHOT = "snapshot"  # bytes in host memory: restore
    RUNNING = "running"  # a sequence in which a request runs: copy


class Source(NamedTuple):
    """One way to start from KV that exists."""

    kind: PrefixKind
    length: int  # tokens that can be brought in, always less than the prompt
    common: int  # tokens in common, before the model's rewind rules
    held: int  # tokens that the entry holds: `common == held` means that the prompt extends it
    place: int  # sequence, blob or page
    seconds: float  # what bringing it in costs
    slot: int = -1  # the running donor

    @property
    def extends(self) -> bool:
        return self.common == self.held


class Donor(NamedTuple):
    """A running request that has, or will have, `length` tokens in common with the prompt."""

    slot: int
    request_id: str
    length: int


class Match(NamedTuple):
    """Everything that a prompt could reuse, longest first."""

    sources: tuple[Source, ...] = ()
    coming: Donor | None = None  # it is computing the common prefix, which can be shared then
    busy: Donor | None = None  # it holds the common prefix, which is available only when it ends
    out_of_reach: int = 0  # tokens in common with an entry that the model cannot be rewound to


class Settled(NamedTuple):
    rebuild: list[Slot]  # their KV is not valid: start again from nothing


class CachedList(NamedTuple):
    """Cached prefixes. `complete`: there are no others."""

    prefixes: list[tuple[Scope, array[int]]]
    complete: bool


class KvLedger(Protocol):
    """Contract, tested for every implementation by one suite:

    - `open` binds memory to a slot and sets `computed`, `planned`, `room`; False: no room, nothing is bound.
    - `reserve` grows `slot.room`; it evicts idle entries but never touches another running slot.
    - `close` releases everything but the first `keep` computed tokens, which stay reusable; `private`: only
      by this request.
    - operations taken by `take_ops` are answered by exactly one `settle` with the same tick id, in order.
    - `room_for` and `room_free` count in the ledger's own unit (cells, pages; none needed without a pool);
      `room_shared` is the part of a source that other slots hold anyway.
    - `relieve` evicts one idle entry when the backend found no room although the ledger had some.
    - `cached` lists prefixes that requests of their scope could find, the most recently used first, until
      they have `tokens_max` tokens together.
    - `check` raises when the ledger is inconsistent.
    """

    notes: list[Note]

    @property
    def host_bytes(self) -> int:
        """Host memory that snapshots and checkpoints of prefixes hold."""
        ...

    def match(self, job: Job) -> Match: ...
    def open(self, slot: Slot, job: Job, source: Source | None) -> bool: ...
    def reserve(self, slot: Slot, length: int) -> bool: ...
    def rollback(self, slot: Slot, length: int) -> None: ...
    def overrun(self, slot: Slot) -> None: ...
    def committed(self, slot: Slot) -> None: ...
    def checkpoint_at(self, job: Job, lengths: Sequence[int]) -> tuple[int, ...]: ...
    def checkpoint(self, slot: Slot, length: int) -> None: ...
    def close(self, slot: Slot, keep: int, *, private: bool = False) -> None: ...
    def forget(self, request_id: str) -> None: ...
    def compact(self, slots: Sequence[Slot]) -> None: ...
    def relieve(self) -> bool: ...
    def room_for(self, tokens: int) -> int: ...
    def room_shared(self, job: Job, source: Source | None) -> int: ...
    def room_free(self) -> int: ...
    def room_gain(self, slots: Sequence[Slot]) -> int: ...
    def take_ops(self, tick_id: int) -> tuple[KvOp, ...]: ...
    def take_tables(self) -> tuple[TableUpdate, ...]: ...
    def settle(self, tick_id: int, results: Sequence[OpResult], *, ran: bool) -> Settled: ...
    def lose(self, sequence: int) -> Slot | None: ...
    def cached(self, tokens_max: int) -> CachedList: ...
    def check(self) -> None: ...
