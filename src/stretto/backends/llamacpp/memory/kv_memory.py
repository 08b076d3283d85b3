"""Executes the ledger's KV operations on llama.cpp's memory, and counts what each sequence holds.

Knows llama.cpp's silent failures: a trim beyond a sliding window returns true and corrupts, a state that
cannot be trimmed returns false, a copy between streams happens only in the next pass, a failed restore leaves
an empty sequence. What may be wrong is reported as failed; the core then rebuilds that slot.

Lengths are rows. llama.cpp is asked by position, which is the same except after pictures with M-RoPE
(`positions`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.context import STATE_ONLY, WHOLE, Context
from stretto.backends.llamacpp.memory.arena import Arena
from stretto.backends.llamacpp.memory.finite_state import can_trim
from stretto.backends.llamacpp.memory.positions import Grid, Grids, inside, position_of, rows_until
from stretto.backends.llamacpp.tuning import STATE_BUFFER_BYTES_MAX
from stretto.core.capabilities import Rewind
from stretto.core.ops import WRITES, KvOp, OpKind, OpResult, check_order
from stretto.errors import InvariantError


class StateBuffer(NamedTuple):
    """The state of a sequence for copies of `length` tokens; empty if it could not be read or trimmed."""

    sequence: int
    length: int
    state: NDArray[np.uint8]


class Saved(NamedTuple):
    """What a snapshot holds: rows, and the pictures among them that share positions."""

    rows: int
    grids: Grids


NOTHING = StateBuffer(-1, 0, np.empty(0, dtype=np.uint8))


class KvMemory:
    def __init__(self, context: Context, arena: Arena, rewind: Rewind, *, state_copy_max: int = 0) -> None:
        """`state_copy_max`: tokens up to which copying by reading and writing a state is faster."""
        self._context = context
        self.arena = arena
        self._rewind = rewind
        copies_by_state = rewind is Rewind.ANY and not context.plan.unified and not context.model.n_swa
        self._state_copy_max = (
            state_copy_max if copies_by_state else 0
        )  # the state of a sliding window holds only the window
        self.lengths = [0] * context.n_seq_max
        self._grids: list[Grids] = [()] * context.n_seq_max  # pictures with M-RoPE that each holds
        self._saved: dict[int, Saved] = {}  # snapshots
        self.copying: set[int] = set()  # targets of copies that wait for the next pass
        self._state_buffer = NOTHING  # of the last copy, for the next one from the same sequence
        self._kept = np.empty(0, dtype=np.uint8)  # reused: the first touch of fresh memory costs most

    def position(self, sequence: int, row: int) -> int:
        """llama.cpp's position of a row that the sequence holds, or of the next one."""
        grids = self._grids[sequence]
        return position_of(grids, row) if grids else row

    def in_picture(self, sequence: int, length: int) -> bool:
        """Whether `length` rows end inside a picture whose rows share a position: no trim can."""
        return inside(self._grids[sequence], length)

    def add_picture(self, sequence: int, grid: Grid) -> None:
        """Before the first rows of a picture run; again for later ones."""
        if grid not in self._grids[sequence]:
            self._grids[sequence] += (grid,)

    def _is_at(self, sequence: int, length: int) -> bool:
        """Whether llama.cpp's last position is that of the last of `length` rows."""
        return self._context.positions(sequence)[1] == self.position(sequence, length - 1)

    def execute(self, ops: Sequence[KvOp]) -> tuple[tuple[OpResult, ...], set[int]]:
        """Results of the operations, in order, and the sequences whose content is not as asked."""
        check_order(ops)
        self._state_buffer = NOTHING
        results: list[OpResult] = []
        broken: set[int] = set()
        for op in ops:
            if op.kind in WRITES and (op.sequence in broken or op.other in broken):
                result = OpResult(ok=False, reason="an earlier operation on the sequence failed")
            else:
                started = time.perf_counter()
                result = self._execute(op)._replace(seconds=time.perf_counter() - started)
            if op.kind in WRITES and op.sequence == self._state_buffer.sequence:
                self._state_buffer = NOTHING
            if op.kind in WRITES and not result.ok:
                broken.add(op.sequence)
            results.append(result)
        return tuple(results), broken

    def _execute(self, op: KvOp) -> OpResult:
        match op.kind:
            case OpKind.SAVE:
                return self._save(op, WHOLE)
            case OpKind.CHECKPOINT:
                return self._save(op, STATE_ONLY)
            case OpKind.DROP:
                self._saved.pop(op.blob, None)
                return OpResult(ok=self.arena.drop(op.blob))
            case OpKind.COPY:
                return self._copy(op)
            case OpKind.TRIM:
                return self._trim(op.sequence, op.length)
            case OpKind.CLEAR:
                return self._clear(op.sequence)
            case OpKind.RESTORE:
                return self._restore(op)
            case OpKind.REWIND:
                return self._rewind_to(op)
            case _:
                raise InvariantError(f"{op.kind.name} is not for sequences")

    # --- reading ---------------------------------------------------------------------------------

    def _save(self, op: KvOp, flags: int) -> OpResult:
        held = self.lengths[op.sequence]
        if held < op.length or (flags == STATE_ONLY and held != op.length):
            raise InvariantError(f"{op.kind.name} of {op.length} tokens from a sequence of {held}")
        size = self._context.state_size(op.sequence, flags)
        place = self.arena.take(op.blob, size)
        if place is None:
            return OpResult(ok=False, reason="no room for the snapshot")
        if self._context.read_state(op.sequence, place, flags) != size:
            self.arena.drop(op.blob)
            return OpResult(ok=False, reason="llama.cpp did not return the state")
        if flags == WHOLE:
            self._saved[op.blob] = Saved(held, self._grids[op.sequence])
        return OpResult(ok=True, bytes=size)

    # --- writing ---------------------------------------------------------------------------------

    def _copy(self, op: KvOp) -> OpResult:
        held = self.lengths[op.other]
        if op.sequence == op.other or op.length > held:
            raise InvariantError(f"a copy of {op.length} tokens from a sequence of {held}")
        if not self._clear(op.sequence).ok:
            return OpResult(ok=False, reason="the target could not be emptied")
        if held == 0:
            return OpResult(ok=True)
        self._grids[op.sequence] = self._grids[op.other]
        if not self._copy_by_state(op):
            self._context.copy(op.other, op.sequence, op.length)
            self.copying.add(op.sequence)
        self.lengths[op.sequence] = held
        trimmed = self._trim(op.sequence, op.length)
        if not trimmed.ok:
            self._clear(op.sequence)
        return trimmed

    def _copy_by_state(self, op: KvOp) -> bool:
        """Copy by reading and writing the state: a copy between streams moves the whole window.

        It takes effect at once, so not while a copy is pending that may read the target.
        """
        if self.lengths[op.other] > self._state_copy_max or self.copying:
            return False
        if (op.other, op.length) != self._state_buffer[:2]:
            self._state_buffer = self._read_for_copy(op.other, op.length)
        state = self._state_buffer.state
        done = len(state) > 0 and self._context.write_state(op.sequence, state, WHOLE) == len(state)
        if done and self._is_at(op.sequence, self.lengths[op.other]):
            return True
        self._context.remove(op.sequence, 0)
        return False

    def _read_for_copy(self, sequence: int, length: int) -> StateBuffer:
        size = self._context.state_size(sequence, WHOLE)
        if len(self._kept) < size <= STATE_BUFFER_BYTES_MAX:
            self._kept = np.empty(size, dtype=np.uint8)
        state = self._kept[:size] if size <= STATE_BUFFER_BYTES_MAX else np.empty(size, dtype=np.uint8)
        done = self._context.read_state(sequence, state, WHOLE) == size and self._can_trim(state, length)
        return StateBuffer(sequence, length, state if done else state[:0])

    def _trim(self, sequence: int, length: int) -> OpResult:
        held = self.lengths[sequence]
        if length > held:
            raise InvariantError(f"a trim to {length} of sequence {sequence} with {held} tokens")
        if length == 0:
            return self._clear(sequence)
        if self.in_picture(sequence, length):
            return OpResult(ok=length == held, reason="rows of a picture cannot be told apart")
        if length < held and not self._may_trim(sequence, length):
            return OpResult(ok=False, reason="this memory cannot be trimmed that far")
        if not self._context.remove(sequence, self.position(sequence, length)):
            return OpResult(ok=False, reason="llama.cpp refused to trim the sequence")
        self._keep(sequence, length)
        return OpResult(ok=True)

    def _keep(self, sequence: int, length: int) -> None:
        self.lengths[sequence] = length
        self._grids[sequence] = tuple(grid for grid in self._grids[sequence] if grid.start < length)

    def _may_trim(self, sequence: int, length: int) -> bool:
        if self._rewind is Rewind.CHECKPOINT:
            return False  # llama.cpp returns true for some of these and corrupts the state
        if self._rewind is Rewind.ANY:
            return True
        if self._context.plan.unified:
            return False  # cells beyond the window are reused one by one: which are left is unknown
        first, _ = self._context.positions(sequence)
        return 0 <= first <= max(0, self.position(sequence, length) - self._context.model.n_swa)

    def _clear(self, sequence: int) -> OpResult:
        if not self._context.remove(sequence, 0):
            return OpResult(ok=False, reason="llama.cpp refused to clear the sequence")
        self._keep(sequence, 0)
        return OpResult(ok=True)

    def _restore(self, op: KvOp) -> OpResult:
        if op.blob not in self.arena:
            return OpResult(ok=False, reason="no such blob")
        if not self._clear(op.sequence).ok:
            return OpResult(ok=False, reason="the sequence could not be emptied")
        blob = self.arena.view(op.blob)
        if not self._can_trim(blob, op.length):
            return OpResult(ok=False, reason="the snapshot contains NaN")
        held, self._grids[op.sequence] = self._saved[op.blob]
        taken = self._context.write_state(op.sequence, blob, WHOLE)
        if taken != len(blob) or held < op.length or not self._is_at(op.sequence, held):
            self._clear(op.sequence)
            return OpResult(ok=False, reason="llama.cpp did not accept the state")
        self.lengths[op.sequence] = held
        trimmed = self._trim(op.sequence, op.length)
        if not trimmed.ok:
            self._clear(op.sequence)
            return trimmed
        return OpResult(ok=True, bytes=taken)

    def _can_trim(self, blob: NDArray[np.uint8], length: int) -> bool:
        """Whether nothing but finite numbers is left in cells beyond `length`. Whole restores leave none.

        Not checked: caches of two types, and cells that hold more than a position (M-RoPE).
        """
        plan = self._context.plan
        mixed = plan.cache_type_k != plan.cache_type_v
        if self._rewind is Rewind.CHECKPOINT or mixed or self._context.model.has_mrope:
            return True
        streams = 1 if plan.unified else plan.n_seq_max
        return can_trim(blob, length, streams=streams, cache_type=plan.cache_type_k)

    def _rewind_to(self, op: KvOp) -> OpResult:
        """The recurrent part comes from the blob; the rest is trimmed."""
        if op.blob not in self.arena:
            return OpResult(ok=False, reason="no such blob")
        if self.lengths[op.sequence] < op.length:
            raise InvariantError(
                f"a rewind to {op.length} of a sequence that holds {self.lengths[op.sequence]}"
            )
        blob = self.arena.view(op.blob)
        taken = self._context.write_state(op.sequence, blob, STATE_ONLY)
        done = taken == len(blob) and not self.in_picture(op.sequence, op.length)
        done = done and self._context.remove(op.sequence, self.position(op.sequence, op.length))
        if not done or not self._is_at(op.sequence, op.length):
            self._clear(op.sequence)
            return OpResult(ok=False, reason="llama.cpp did not accept the state")
        self._keep(op.sequence, op.length)
        return OpResult(ok=True, bytes=taken)

    # --- failures --------------------------------------------------------------------------------

    def roll_back(self, sequence: int, length: int) -> bool:
        """Trim to `length`, starting from what llama.cpp really holds. False: the sequence was cleared.

        Inside a picture that shares a position only our own count says what is held.
        """
        held = self.lengths[sequence]
        if not self.in_picture(sequence, length):
            held = max(0, rows_until(self._grids[sequence], self._context.positions(sequence)[1]))
        self.lengths[sequence] = held
        if held >= length and self._trim(sequence, length).ok:
            return True
        self._clear(sequence)
        return False

    def drop(self, sequence: int) -> None:
        """Clear a sequence whose content is unknown."""
        self._clear(sequence)

    def forget_all(self) -> None:
        """The context is new: every sequence is empty. Blobs are host memory and stay valid."""
        self.lengths = [0] * len(self.lengths)
        self._grids = [()] * len(self.lengths)
        self.copying.clear()
