"""Simulated memory is as strict as the real one: misuse that corrupts silently there is detected here."""

from __future__ import annotations

import pytest

from stretto.backends.simulated import SimulatedModel
from stretto.backends.simulated.memory import ContractError, PagedMemory, make_memory
from stretto.core.capabilities import Rewind
from stretto.core.ops import KvOp, OpKind
from stretto.core.request import Scope
from stretto.core.tick import TableUpdate
from tests.unit.core.rig import paged, prompt, streams, unified

MODEL = SimulatedModel()
TEXT = prompt(20)


def cells(count: int, start: int = 1):
    return MODEL.cells(Scope("a", ""), prompt(count, start))


def filled(can, count: int = 10):
    memory = make_memory(can)
    memory.append(0, 0, cells(count))
    return memory


def test_a_copy_between_streams_is_deferred_to_the_pass():
    memory = filled(streams(2))
    assert memory.execute(KvOp(OpKind.COPY, 1, 0, 10)).ok
    assert memory.length(1) == 10
    assert memory.content(1, 10) != cells(10).tobytes()
    memory.begin_pass()
    assert memory.content(1, 10) == cells(10).tobytes()


def test_a_deferred_copy_takes_the_later_contents_of_its_source():
    """Restoring into the source of a pending copy corrupts the target, as llama.cpp does."""
    memory = filled(streams(3))
    memory.append(2, 0, cells(10, 7))
    memory.execute(KvOp(OpKind.SAVE, 2, length=10, blob=0))
    memory.execute(KvOp(OpKind.COPY, 1, 0, 10))
    memory.execute(KvOp(OpKind.RESTORE, 0, length=10, blob=0))
    memory.begin_pass()
    assert memory.content(1, 10) == cells(10, 7).tobytes()


def test_a_copy_in_a_unified_pool_is_immediate_and_takes_no_cells():
    memory = filled(unified(2, 32))
    assert memory.execute(KvOp(OpKind.COPY, 1, 0, 6)).ok
    assert memory.content(1, 6) == cells(6).tobytes()
    assert memory.free_rows() == 22


def test_a_pool_rejects_more_cells_than_it_has():
    memory = filled(unified(2, 12))
    with pytest.raises(ContractError, match="more cells than the pool has"):
        memory.append(1, 0, cells(3))


def test_truncating_recurrent_state_is_refused():
    memory = filled(streams(1, rewind=Rewind.CHECKPOINT))
    assert not memory.execute(KvOp(OpKind.TRIM, 0, length=5)).ok
    assert not memory.roll_back(0, 5)
    assert memory.roll_back(0, 10)


def test_trimming_beyond_a_sliding_window_succeeds_and_poisons_cells():
    memory = filled(streams(1, rewind=Rewind.WINDOW, rewind_tokens=4))
    assert memory.execute(KvOp(OpKind.TRIM, 0, length=6)).ok
    assert memory.content(0, 6) == cells(6).tobytes()
    assert memory.execute(KvOp(OpKind.TRIM, 0, length=5)).ok
    assert memory.content(0, 5) != cells(5).tobytes()


def test_state_of_another_text_is_detected():
    memory = filled(streams(1, rewind=Rewind.CHECKPOINT))
    memory.execute(KvOp(OpKind.CHECKPOINT, 0, length=10, blob=0))
    memory.append(0, 10, cells(4, 9))
    memory.execute(KvOp(OpKind.CLEAR, 0))
    memory.append(0, 0, cells(12, 3))
    memory.execute(KvOp(OpKind.REWIND, 0, length=10, blob=0))
    assert memory.content(0, 10) != cells(10, 3).tobytes()


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (KvOp(OpKind.TRIM, 0, length=11), "a trim to 11"),
        (KvOp(OpKind.COPY, 1, 0, 11), "a copy of 11 tokens"),
        (KvOp(OpKind.COPY, 0, 0, 5), "onto itself"),
        (KvOp(OpKind.SAVE, 0, length=11, blob=0), "longer than its sequence"),
        (KvOp(OpKind.CHECKPOINT, 0, length=9, blob=0), "not at the sequence's end"),
        (KvOp(OpKind.DROP, blob=3), "does not exist"),
        (KvOp(OpKind.COPY_PAGES, 0, 0, 1), "not an operation on sequences"),
    ],
)
def test_operations_that_would_crash_a_backend_raise(op, why):
    with pytest.raises(ContractError, match=why):
        filled(streams(2)).execute(op)


def test_rows_must_continue_their_sequence():
    memory = filled(streams(1))
    with pytest.raises(ContractError, match="which ends at 10"):
        memory.append(0, 12, cells(1))


def test_a_missing_blob_is_a_failed_operation():
    memory = filled(streams(1))
    assert not memory.execute(KvOp(OpKind.RESTORE, 0, length=3, blob=9)).ok
    assert not memory.execute(KvOp(OpKind.REWIND, 0, length=3, blob=9)).ok


# --- pages -------------------------------------------------------------------------------------------


def pages() -> PagedMemory:
    memory = make_memory(paged(2, pages=8, page_tokens=4))
    assert isinstance(memory, PagedMemory)
    memory.begin_tick()
    return memory


def test_rows_are_written_to_the_pages_of_the_table():
    memory = pages()
    memory.update_table(TableUpdate(0, 0, (5, 2)))
    memory.append(0, 0, cells(6))
    assert memory.content(0, 6) == cells(6).tobytes()
    memory.update_table(TableUpdate(1, 0, (5,)))
    assert memory.content(1, 4) == cells(4).tobytes()


def test_a_row_without_a_page_raises():
    memory = pages()
    memory.update_table(TableUpdate(0, 0, (5,)))
    with pytest.raises(ContractError, match="has no page"):
        memory.append(0, 0, cells(5))
    with pytest.raises(ContractError, match="a hole"):
        memory.update_table(TableUpdate(0, 2, (6,)))


def test_a_page_reused_before_its_tick_is_collected_is_poisoned():
    memory = pages()
    memory.update_table(TableUpdate(0, 0, (5,)))
    memory.append(0, 0, cells(4))
    memory.begin_tick()  # the tick that writes page 5 has not been collected
    memory.update_table(TableUpdate(1, 0, (5,)))
    memory.append(1, 0, cells(4, 3))
    assert memory.content(1, 4) != cells(4, 3).tobytes()


def test_a_page_is_copied_in_part():
    memory = pages()
    memory.update_table(TableUpdate(0, 0, (5,)))
    memory.append(0, 0, cells(4))
    memory.execute(KvOp(OpKind.COPY_PAGES, 6, 5, 3))
    memory.update_table(TableUpdate(1, 0, (6,)))
    assert memory.content(1, 3) == cells(3).tobytes()
