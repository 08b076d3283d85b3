"""A tick's columns become rows: sorted by sequence, positions and outputs in their places."""

from __future__ import annotations

from array import array

from stretto.backends.llamacpp.native.batch import Batch, gather
from stretto.backends.llamacpp.native.library import library
from stretto.core.tick import Tick


def tick() -> Tick:
    return Tick(
        1,
        slots=array("i", [0, 1, 2]),
        sequences=array("i", [2, 0, 1]),
        starts=array("i", [10, 4, 0]),
        counts=array("i", [1, 2, 3]),
        outputs=array("i", [1, 2, 1]),
        tokens=array("i", [100, 200, 201, 300, 301, 302]),
    )


def test_rows_are_gathered_by_ascending_sequence() -> None:
    rows = gather(tick(), [0, 1, 2])
    assert rows.spans == [1, 2, 0]
    assert rows.tokens.tolist() == [200, 201, 300, 301, 302, 100]
    assert rows.positions.tolist() == [4, 5, 0, 1, 2, 10]
    assert rows.sequences.tolist() == [0, 0, 1, 1, 1, 2]
    assert rows.outputs.tolist() == [1, 1, 0, 0, 1, 1]
    assert rows.outputs_count == 4


def test_a_part_of_the_spans_is_a_call_of_its_own() -> None:
    rows = gather(tick(), [0])
    assert (rows.tokens.tolist(), rows.positions.tolist(), rows.outputs.tolist()) == ([100], [10], [1])


def test_the_native_batch_points_at_our_arrays() -> None:
    batch = Batch(library(), 16)
    native = batch.fill(gather(tick(), [0, 1, 2]))
    assert native.n_tokens == 6
    assert [native.token[at] for at in range(6)] == [200, 201, 300, 301, 302, 100]
    assert [native.seq_id[at][0] for at in range(6)] == [0, 0, 1, 1, 1, 2]
    assert [native.n_seq_id[at] for at in range(6)] == [1] * 6
    assert [native.pos[at] for at in range(6)] == [4, 5, 0, 1, 2, 10]
    assert [native.logits[at] for at in range(6)] == [1, 1, 0, 0, 1, 1]
