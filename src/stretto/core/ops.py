"""KV operations: what the ledger asks of a backend before a tick's rows run.

The order of `OpKind` is the order of execution (the normal form). Why this order: SAVE and CHECKPOINT
read before anything changes; COPY before TRIM and CLEAR makes a move right (copy, clear the source,
refill it in the same pass); CLEAR before RESTORE frees cells in a shared pool. Pages are saved before any
of them is overwritten, and loaded before they are copied.

Rules (checked by `check_order`, and by the simulated backend at run time):
(a) a tick's list is sorted by kind;
(b) no sequence is an end of a COPY and the target of a RESTORE or REWIND in one tick;
(c) COPY empties its target and trims it to `length`;
(d) every operation answers ok(bytes) or failed(reason);
(e) after a failed operation the rows of its sequence are not run, and commit rebuilds that slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from stretto.errors import InvariantError


class OpKind(IntEnum):
    SAVE = 0  # sequence -> blob, whole state
    CHECKPOINT = 1  # sequence -> blob, only what cannot be rewound
    DROP = 2  # forget a blob
    COPY = 3  # other -> sequence, length
    TRIM = 4  # sequence keeps its first `length` tokens
    CLEAR = 5  # sequence is empty
    RESTORE = 6  # blob -> sequence, trimmed to length
    REWIND = 7  # state-only blob -> sequence, which is trimmed to length
    SAVE_PAGES = 8  # page `sequence` -> blob, a place in host memory, which is overwritten
    LOAD_PAGES = 9  # blob -> page `sequence`
    COPY_PAGES = 10  # page `other` -> page `sequence`, first `length` tokens


class KvOp(NamedTuple):
    kind: OpKind
    sequence: int = -1
    other: int = -1
    length: int = 0
    blob: int = -1


class OpResult(NamedTuple):
    ok: bool
    bytes: int = 0
    seconds: float = 0.0
    reason: str = ""


WRITES = frozenset({OpKind.COPY, OpKind.TRIM, OpKind.CLEAR, OpKind.RESTORE, OpKind.REWIND})
"""Kinds that change their sequence: when one fails, the rows of that sequence are not run."""
PAGE_OPS = frozenset({OpKind.SAVE_PAGES, OpKind.LOAD_PAGES, OpKind.COPY_PAGES})
PAGE_WRITES = frozenset({OpKind.LOAD_PAGES, OpKind.COPY_PAGES})


def check_order(ops: Sequence[KvOp]) -> None:
    """Rules (a) and (b). Raises InvariantError."""
    kinds = [op.kind for op in ops]
    if kinds != sorted(kinds):
        raise InvariantError(f"operations out of order: {[kind.name for kind in kinds]}")
    copied = {op.sequence for op in ops if op.kind is OpKind.COPY}
    copied |= {op.other for op in ops if op.kind is OpKind.COPY}
    for op in ops:
        if op.kind in (OpKind.RESTORE, OpKind.REWIND) and op.sequence in copied:
            raise InvariantError(
                f"sequence {op.sequence} is an end of a COPY and the target of a {op.kind.name}"
            )
