"""Operations have a normal form, and two laws that a list can break."""

from __future__ import annotations

import pytest

from stretto.core.ops import WRITES, KvOp, OpKind, check_order
from stretto.errors import InvariantError


def test_the_order_of_execution():
    names = ["SAVE", "CHECKPOINT", "DROP", "COPY", "TRIM", "CLEAR", "RESTORE", "REWIND"]
    names += ["SAVE_PAGES", "LOAD_PAGES", "COPY_PAGES"]
    assert [kind.name for kind in sorted(OpKind)] == names


def test_a_move_is_in_order():
    check_order([KvOp(OpKind.SAVE, 1, blob=0), KvOp(OpKind.COPY, 1, 0, 5), KvOp(OpKind.CLEAR, 0)])


def test_out_of_order():
    with pytest.raises(InvariantError, match="out of order"):
        check_order([KvOp(OpKind.CLEAR, 0), KvOp(OpKind.COPY, 1, 0, 5)])


@pytest.mark.parametrize("kind", [OpKind.RESTORE, OpKind.REWIND])
@pytest.mark.parametrize("sequence", [0, 1])
def test_no_end_of_a_copy_is_restored_in_the_same_tick(kind, sequence):
    with pytest.raises(InvariantError, match="end of a COPY"):
        check_order([KvOp(OpKind.COPY, 1, 0, 5), KvOp(kind, sequence, length=3, blob=1)])
    check_order([KvOp(OpKind.COPY, 1, 0, 5), KvOp(kind, 2, length=3, blob=1)])


def test_what_writes_a_sequence():
    assert {kind.name for kind in WRITES} == {"COPY", "TRIM", "CLEAR", "RESTORE", "REWIND"}
