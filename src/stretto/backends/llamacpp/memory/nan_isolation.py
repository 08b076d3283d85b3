"""NaN isolation: keeps NaN and Inf in one request's KV cells from reaching the next request in that slot.

llama.cpp multiplies masked cells by 0 instead of skipping them: always without flash attention and, on a CPU,
in the tiles of long chunks with it. 0 × NaN is NaN, so the freed cells of a request whose logits were not
finite would spread to the next request there. llama.cpp has no call that zeroes the cells of one sequence,
only one for all: what the other sequences hold is read, and written back. A unified pool gets a new context,
and all requests are recomputed.

Not covered: NaN that no logits showed (a prompt cancelled or copied before its first token), and, in a
unified pool without flash attention, requests in the same pass: all rows see the same cells there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.context import WHOLE, Context
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.prefill.side_context import SideContext
from stretto.core.ops import KvOp, OpKind

EMPTIES = (OpKind.CLEAR, OpKind.COPY, OpKind.RESTORE)
READS = (OpKind.SAVE, OpKind.CHECKPOINT)


class NanIsolationError(Exception):
    """A sequence could not be written back: the state of the context is unknown."""


class NanIsolation:
    """`nan_sequences`: those with logits that were not finite, until their cells are zeroed."""

    def __init__(self, context: Context, memory: KvMemory) -> None:
        self._context = context
        self._memory = memory
        self.nan_sequences: set[int] = set()

    def note(self, sequence: int, logits: NDArray[np.float32]) -> None:
        """A request failed with these logits. If they are finite (a grammar failed), its cells are fine."""
        if not np.isfinite(logits).all():
            self.nan_sequences.add(sequence)

    def forget_all(self) -> None:
        """The context is new: its cells are zero."""
        self.nan_sequences.clear()

    def before(self, ops: Sequence[KvOp], side: SideContext | None) -> None:
        """At the start of a tick. A pending copy between streams comes first: it may read those cells."""
        due = self._due(ops) if self.nan_sequences and not self._memory.copying else set()
        if not due:
            return
        if side is not None:
            side.holds_nan = True
            if side.sequence in due:
                side.drop()
        for sequence in due:
            self._memory.drop(sequence)
        try:
            zero_free_cells(self._context)
        except MemoryError as error:
            raise NanIsolationError from error
        self.nan_sequences -= due

    def _due(self, ops: Sequence[KvOp]) -> set[int]:
        """Those that are empty, or that these operations empty before another one reads them."""
        emptied = {op.sequence for op in ops if op.kind in EMPTIES}
        read = {op.sequence for op in ops if op.kind in READS} | {op.other for op in ops}
        empty = {sequence for sequence in self.nan_sequences if not self._memory.lengths[sequence]}
        return self.nan_sequences & ((emptied - read) | empty)


def zero_free_cells(context: Context) -> None:
    """Zero every cell that no sequence holds; the sequences stay the same.

    Not in a unified pool: cells that sequences share would be written back once for each.
    """
    if context.plan.unified:
        raise NanIsolationError
    kept: list[tuple[int, int, NDArray[np.uint8]]] = []
    for sequence in range(context.n_seq_max):
        last = context.positions(sequence)[1]
        if last >= 0:
            state = np.empty(context.state_size(sequence, WHOLE), dtype=np.uint8)
            if context.read_state(sequence, state, WHOLE) != len(state):
                raise NanIsolationError
            kept.append((sequence, last, state))
    context.clear()
    for sequence, last, state in kept:
        taken = context.write_state(sequence, state, WHOLE)
        if taken != len(state) or context.positions(sequence)[1] != last:
            raise NanIsolationError
