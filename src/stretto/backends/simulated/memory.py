"""Simulated KV memory in three layouts, as strict as the real ones.

Streams: one buffer per sequence, whose contents TRIM and CLEAR leave in place; copies between sequences are
deferred to the next pass and take what the source buffer holds by then. Unified: one pool of cells with
reference counts. Pages: block tables; a page that is reused while a tick in flight still writes it is
poisoned. State that cannot be truncated (hybrid, recurrent) is kept beside the cells and must agree with
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from stretto.backends.simulated.model import GRID, POISON
from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.core.tick import TableUpdate


class ContractError(AssertionError):
    """The core requested something that would crash or corrupt a real backend."""


class Blob(NamedTuple):
    cells: array[int]
    state: array[int] | None
    peak: int = 0


class SequenceStore:
    """Shared by streams and unified memory: lengths, state that cannot be truncated, blobs."""

    def __init__(self, can: Capabilities) -> None:
        self._can = can
        self._lengths = [0] * can.sequences_max
        self._peaks = [0] * can.sequences_max  # a sliding window has dropped cells far before these
        self._states: list[array[int]] = [array("q") for _ in range(can.sequences_max)]
        self.blobs: dict[int, Blob] = {}

    # Implemented by each layout: how cells are read, replaced and shared.
    def _cells(self, sequence: int, length: int) -> array[int]:
        raise NotImplementedError

    def _replace(self, sequence: int, cells: Sequence[int]) -> bool:
        raise NotImplementedError

    def _truncate(self, sequence: int, length: int) -> None:
        raise NotImplementedError

    def _copy(self, source: int, target: int, length: int) -> None:
        raise NotImplementedError

    def execute(self, op: KvOp) -> OpResult:
        size = op.length * self._can.bytes_per_token + self._can.state_bytes
        match op.kind:
            case OpKind.SAVE:
                return self._save(op, size)
            case OpKind.CHECKPOINT:
                self._need(op.blob not in self.blobs, "a blob id is used twice")
                self._need(
                    self._lengths[op.sequence] == op.length,
                    "a checkpoint not at the sequence's end",
                )
                self.blobs[op.blob] = Blob(array("q"), self._states[op.sequence][:])
                return OpResult(ok=True, bytes=self._can.state_bytes)
            case OpKind.DROP:
                self._need(op.blob in self.blobs, "dropped blob does not exist")
                del self.blobs[op.blob]
            case OpKind.COPY:
                return self._execute_copy(op)
            case OpKind.TRIM:
                self._need(not self._divides(op.sequence, op.length), "a trim that ends inside a picture")
                return self._trim(op.sequence, op.length)
            case OpKind.CLEAR:
                self._truncate(op.sequence, 0)
                self._states[op.sequence] = array("q")
                self._peaks[op.sequence] = 0
            case OpKind.RESTORE:
                return self._restore(op, size)
            case OpKind.REWIND:
                return self._rewind(op)
            case _:
                raise ContractError(f"{op.kind.name} is not an operation on sequences")
        return OpResult(ok=True)

    def _save(self, op: KvOp, size: int) -> OpResult:
        self._need(op.blob not in self.blobs, "a blob id is used twice")
        self._need(self._lengths[op.sequence] >= op.length, "a snapshot longer than its sequence")
        cells = self._cells(op.sequence, self._lengths[op.sequence])
        self.blobs[op.blob] = Blob(cells, self._states[op.sequence][:], self._peaks[op.sequence])
        return OpResult(ok=True, bytes=size)

    def _execute_copy(self, op: KvOp) -> OpResult:
        held = self._lengths[op.other]
        self._need(op.length <= held, f"a copy of {op.length} tokens from a sequence of {held}")
        self._need(op.sequence != op.other, "a copy onto itself")
        self._need(not self._divides(op.other, op.length), "a copy that ends inside a picture")
        self._copy(op.other, op.sequence, op.length)
        self._states[op.sequence] = self._states[op.other][:]
        self._lengths[op.sequence] = held
        self._peaks[op.sequence] = self._peaks[op.other]
        return self._trim(op.sequence, op.length)

    def _trim(self, sequence: int, length: int) -> OpResult:
        held = self._lengths[sequence]
        self._need(length <= held, f"a trim to {length} of a sequence of {held}")
        if length < held and self._can.rewind is Rewind.CHECKPOINT:
            return OpResult(ok=False, reason="this model's state cannot be truncated")
        self._truncate(sequence, length)
        window_gone = self._peaks[sequence] - length > self._can.rewind_tokens
        if 0 < length < held and self._can.rewind is Rewind.WINDOW and window_gone:
            self._poison(sequence, length - 1)  # llama.cpp reports success here
        self._states[sequence] = self._states[sequence][:length]
        return OpResult(ok=True)

    def _restore(self, op: KvOp, size: int) -> OpResult:
        blob = self.blobs.get(op.blob)
        if blob is None:
            return OpResult(ok=False, reason="no such blob")
        self._need(not _is_divided(blob.cells, op.length), "a restore that ends inside a picture")
        self._truncate(op.sequence, 0)
        if not self._replace(op.sequence, blob.cells):
            return OpResult(ok=False, reason="no cells")
        self._lengths[op.sequence] = len(blob.cells)
        self._peaks[op.sequence] = blob.peak
        self._states[op.sequence] = blob.state[:] if blob.state is not None else array("q")
        trimmed = self._trim(op.sequence, op.length)
        return OpResult(ok=True, bytes=size) if trimmed.ok else trimmed

    def _rewind(self, op: KvOp) -> OpResult:
        blob = self.blobs.get(op.blob)
        if blob is None or blob.state is None:
            return OpResult(ok=False, reason="no such blob")
        self._need(self._lengths[op.sequence] >= op.length, "a rewind beyond the end of the sequence")
        self._truncate(op.sequence, op.length)
        self._peaks[op.sequence] = op.length
        self._states[op.sequence] = blob.state[:]
        return OpResult(ok=True, bytes=self._can.state_bytes)

    def damage(self, op: KvOp) -> None:
        """A failed operation: TRIM and CLEAR did nothing, the others left garbage."""
        if op.kind in (OpKind.COPY, OpKind.RESTORE, OpKind.REWIND):
            for position in range(self._lengths[op.sequence]):
                self._poison(op.sequence, position)

    def _poison(self, sequence: int, position: int) -> None:
        raise NotImplementedError

    def begin_pass(self) -> None:
        """Carries out deferred copies."""

    def append(self, sequence: int, start: int, cells: Sequence[int]) -> None:
        held = self._lengths[sequence]
        self._need(start == held, f"rows at {start} in sequence {sequence}, which ends at {held}")
        self._need(start + len(cells) <= self._can.window, "rows beyond the end of the window")
        self._extend(sequence, cells)
        self._lengths[sequence] += len(cells)
        self._peaks[sequence] = max(self._peaks[sequence], self._lengths[sequence])
        if self._can.rewind is not Rewind.ANY:
            self._states[sequence].extend(cells)

    def _extend(self, sequence: int, cells: Sequence[int]) -> None:
        raise NotImplementedError

    def content(self, sequence: int, length: int) -> bytes:
        cells = self._cells(sequence, length)
        if self._can.rewind is Rewind.CHECKPOINT and self._states[sequence][:length] != cells:
            return cells.tobytes() + b"the state is of another text"
        return cells.tobytes()

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def roll_back(self, sequence: int, length: int) -> bool:
        """After a failed pass. False: this model's state cannot be rolled back to that length."""
        surplus = self._lengths[sequence] - length
        window_gone = self._peaks[sequence] - length > self._can.rewind_tokens
        gone = surplus > 0 and self._can.rewind is Rewind.WINDOW and window_gone
        gone = gone or self._divides(sequence, length)
        return surplus >= 0 and not gone and self._trim(sequence, length).ok

    def _divides(self, sequence: int, length: int) -> bool:
        """Whether a picture whose rows share a position would be cut: what of it goes cannot be named."""
        return length < self._lengths[sequence] and _is_divided(self._cells(sequence, length + 1), length)

    def update_table(self, update: TableUpdate) -> None:
        raise ContractError("sequences have no block tables")

    @staticmethod
    def _need(holds: bool, what: str) -> None:
        if not holds:
            raise ContractError(what)


class StreamMemory(SequenceStore):
    def __init__(self, can: Capabilities) -> None:
        super().__init__(can)
        self._buffers: list[array[int]] = [array("q") for _ in range(can.sequences_max)]
        self._copies: list[tuple[int, int]] = []

    def _cells(self, sequence: int, length: int) -> array[int]:
        return self._buffers[sequence][:length]

    def _replace(self, sequence: int, cells: Sequence[int]) -> bool:
        self._write(sequence, 0, cells)
        return True

    def _truncate(self, sequence: int, length: int) -> None:
        self._lengths[sequence] = length

    def damage(self, op: KvOp) -> None:
        """Deferred copies that read this sequence, and those before them, take its previous contents."""
        reading = [at for at, (source, _) in enumerate(self._copies) if source == op.sequence]
        self._carry_out(max(reading, default=-1) + 1)
        super().damage(op)

    def _carry_out(self, count: int) -> None:
        """The first `count` deferred copies, in order."""
        for source, target in self._copies[:count]:
            self._buffers[target] = self._buffers[source][:]
        del self._copies[:count]

    def _copy(self, source: int, target: int, length: int) -> None:
        self._copies.append((source, target))
        buffer = self._buffers[target]
        if len(buffer) < length:
            buffer.extend([POISON] * (length - len(buffer)))

    def _divides(self, sequence: int, length: int) -> bool:
        """The target of a deferred copy was asked for when it was copied."""
        return all(target != sequence for _, target in self._copies) and super()._divides(sequence, length)

    def begin_pass(self) -> None:
        self._carry_out(len(self._copies))

    def free_rows(self) -> int:
        return 1 << 40

    def _extend(self, sequence: int, cells: Sequence[int]) -> None:
        self._write(sequence, self._lengths[sequence], cells)

    def _write(self, sequence: int, start: int, cells: Sequence[int]) -> None:
        self._buffers[sequence][start : start + len(cells)] = array("q", cells)

    def _poison(self, sequence: int, position: int) -> None:
        self._buffers[sequence][position] = POISON


class UnifiedMemory(SequenceStore):
    def __init__(self, can: Capabilities) -> None:
        super().__init__(can)
        self._held: list[list[int]] = [[] for _ in range(can.sequences_max)]
        self._data: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._next = 0

    def _cells(self, sequence: int, length: int) -> array[int]:
        return array("q", [self._data[cell] for cell in self._held[sequence][:length]])

    def _replace(self, sequence: int, cells: Sequence[int]) -> bool:
        if len(cells) > self.free_rows():
            return False
        self._extend(sequence, cells)
        return True

    def _extend(self, sequence: int, cells: Sequence[int]) -> None:
        self._need(len(cells) <= self.free_rows(), "more cells than the pool has")
        for value in cells:
            self._data[self._next] = value
            self._holders[self._next] = 1
            self._held[sequence].append(self._next)
            self._next += 1

    def _truncate(self, sequence: int, length: int) -> None:
        held = self._held[sequence]
        for cell in held[length:]:
            self._holders[cell] -= 1
            if self._holders[cell] == 0:
                del self._holders[cell], self._data[cell]
        del held[length:]
        self._lengths[sequence] = length

    def _copy(self, source: int, target: int, length: int) -> None:
        self._truncate(target, 0)
        self._held[target] = list(self._held[source])
        for cell in self._held[target]:
            self._holders[cell] += 1

    def free_rows(self) -> int:
        return self._can.pages - len(self._data)

    def _poison(self, sequence: int, position: int) -> None:
        cell = self._held[sequence][position]
        if self._holders[cell] == 1:
            self._data[cell] = POISON


class PagedMemory:
    def __init__(self, can: Capabilities) -> None:
        self._size = can.page_tokens
        self._pages = [array("q", [POISON] * can.page_tokens) for _ in range(can.pages)]
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._writers: list[dict[int, int]] = []  # per tick in flight: page -> slot that writes it
        self.blobs: dict[int, Blob] = {}
        self._poisoned: dict[int, None] = {}
        self._host: dict[int, array[int]] = {}

    def begin_tick(self) -> None:
        self._writers.append({})

    def end_tick(self) -> None:
        self._writers.pop(0)
        if not self._writers:
            self._poisoned.clear()

    def update_table(self, update: TableUpdate) -> None:
        table = self._tables.setdefault(update.slot, [])
        if update.offset > len(table):
            raise ContractError("a block table with a hole")
        for page in update.pages:
            if any(page in writes and writes[page] != update.slot for writes in self._writers[:-1]):
                self._poisoned[page] = None  # a tick in flight still writes it
        table[update.offset :] = update.pages
        self._lengths[update.slot] = min(self._lengths.get(update.slot, 0), update.offset * self._size)

    def execute(self, op: KvOp) -> OpResult:
        match op.kind:
            case OpKind.SAVE_PAGES:
                self._host[op.blob] = self._pages[op.sequence][:]
            case OpKind.LOAD_PAGES:
                if op.blob not in self._host:
                    raise ContractError(f"blob {op.blob} was never saved")
                self._pages[op.sequence][:] = self._host[op.blob]
            case OpKind.COPY_PAGES:
                self._pages[op.sequence][: op.length] = self._pages[op.other][: op.length]
                return OpResult(ok=True, bytes=op.length)
            case _:
                raise ContractError(f"{op.kind.name} is not an operation on pages")
        return OpResult(ok=True, bytes=self._size)

    def damage(self, op: KvOp) -> None:
        blank = array("q", [POISON] * self._size)
        if op.kind is OpKind.SAVE_PAGES:
            self._host[op.blob] = blank
        else:
            self._pages[op.sequence] = blank

    def begin_pass(self) -> None:
        """No-op: pages are copied immediately."""

    def free_rows(self) -> int:
        return 1 << 40

    def append(self, sequence: int, start: int, cells: Sequence[int]) -> None:
        table = self._tables[sequence]
        for position, value in enumerate(cells, start):
            index, offset = divmod(position, self._size)
            if index >= len(table):
                raise ContractError(f"row {position} of slot {sequence} has no page")
            page = table[index]
            self._writers[-1][page] = sequence
            self._pages[page][offset] = POISON if page in self._poisoned else value
        self._lengths[sequence] = start + len(cells)

    def content(self, sequence: int, length: int) -> bytes:
        whole, rest = divmod(length, self._size)
        table = self._tables[sequence]
        parts = [self._pages[page].tobytes() for page in table[:whole]]
        if rest:
            parts.append(self._pages[table[whole]][:rest].tobytes())
        return b"".join(parts)

    def length(self, sequence: int) -> int:
        return self._lengths.get(sequence, 0)

    def roll_back(self, sequence: int, length: int) -> bool:
        self._lengths[sequence] = length
        return True


def _is_divided(cells: Sequence[int], length: int) -> bool:
    """Whether the cell here is of a grid, and not its first."""
    return length < len(cells) and bool(cells[length] & GRID)


def make_memory(can: Capabilities) -> StreamMemory | UnifiedMemory | PagedMemory:
    if can.share is Share.PAGES:
        return PagedMemory(can)
    return UnifiedMemory(can) if can.pages else StreamMemory(can)
