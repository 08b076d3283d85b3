"""KV operations on a sequence with a picture of M-RoPE: rows are trimmed, copied and saved by position.

What llama.cpp holds afterwards is read from a saved state: the position of each of its cells.
"""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from stretto.backends.llamacpp import Context
from stretto.backends.llamacpp.context import WHOLE
from stretto.backends.llamacpp.memory.arena import Arena
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.memory.positions import Grid, grid_planes
from stretto.backends.llamacpp.native.batch import Rows
from stretto.core.capabilities import Rewind
from stretto.core.ops import KvOp, OpKind
from tests.unit.backends.llamacpp.rig import options, text, tiny

GRID = Grid(5, 3, 2)
BEFORE, PICTURE, AFTER = [0, 1, 2, 3, 4], [5] * 6, [8, 9, 10]
BLOB, CHECKPOINT = 1, 2


class Filled:
    """Sequence 0 holds five tokens, a picture of six rows, or a part of it, and three tokens."""

    def __init__(self, kind: str = "mrope", *, picture: int = 6, unified: bool = False) -> None:
        self.context = Context(tiny(kind), options(unified=unified))
        hybrid = self.context.model.is_hybrid
        rewind = Rewind.CHECKPOINT if hybrid else Rewind.ANY
        self.memory = KvMemory(self.context, Arena(1 << 22), rewind, state_copy_max=0)
        self.tokens(5)
        self.memory.add_picture(0, GRID)
        self.rows(0, picture)
        if picture == 6:
            self.tokens(3)

    def tokens(self, count: int) -> None:
        start = self.memory.position(0, self.memory.lengths[0])
        positions = array("i", range(start, start + count))
        zeros = array("i", bytes(4 * count))
        assert self.context.decode(Rows([], text(count), positions, zeros, array("b", bytes(count)), 0)) == 0
        self.memory.lengths[0] += count

    def rows(self, offset: int, count: int) -> None:
        data = np.random.default_rng(1).standard_normal((count, 64)).astype(np.float32).tobytes()
        planes = grid_planes(GRID, 5, offset, count)
        assert self.context.decode_rows(data, 0, planes, whole=False) == 0
        self.memory.lengths[0] += count

    def do(self, kind: OpKind, sequence: int = 0, **more) -> bool:
        (result,), _ = self.memory.execute([KvOp(kind, sequence, **more)])
        return result.ok

    def held(self, sequence: int = 0) -> list[int]:
        """The positions of its cells."""
        if self.memory.copying:  # a copy between streams happens in the next pass, of any sequence
            one = array("i", [0])
            sequences = array("i", [3])
            assert self.context.decode(Rows([], text(1), one, sequences, array("b", [0]), 0)) == 0
            self.memory.copying.clear()
        state = np.empty(self.context.state_size(sequence, WHOLE), dtype=np.uint8)
        assert self.context.read_state(sequence, state, WHOLE) == len(state)
        streams = 1 if self.context.plan.unified else self.context.n_seq_max
        counts = state[12 : 12 + 4 * streams].view("u4")
        at = next((at for at, count in enumerate(counts) if count), None)
        if at is None:
            return []
        cell = 4 * 6  # position, one, column, row, token, sequence id
        begin = 12 + 4 * (at + 1)
        cells = state[begin : begin + cell * int(counts[at])].view("i4").reshape(-1, 6)
        return sorted(int(position) for position in cells[:, 0])


@pytest.mark.parametrize(("length", "left"), [(13, 2), (11, 0)])
def test_a_trim_keeps_the_picture_and_the_text_before_its_end(length, left):
    made = Filled()
    assert made.do(OpKind.TRIM, length=length)
    assert made.held() == BEFORE + PICTURE + AFTER[:left]
    made.tokens(3 - left)
    assert made.held() == BEFORE + PICTURE + AFTER


@pytest.mark.parametrize("length", [5, 3])
def test_a_trim_before_the_picture_forgets_it(length):
    made = Filled()
    assert made.do(OpKind.TRIM, length=length)
    assert made.held() == BEFORE[:length]
    made.tokens(9)
    assert made.held() == list(range(length + 9))


@pytest.mark.parametrize("length", [6, 10])
def test_a_trim_that_ends_inside_the_picture_fails_and_takes_nothing(length):
    made = Filled()
    assert not made.do(OpKind.TRIM, length=length)
    assert made.held() == BEFORE + PICTURE + AFTER


def test_a_sequence_that_ends_inside_the_picture_may_stay_as_it_is():
    made = Filled(picture=4)
    assert made.do(OpKind.TRIM, length=9)
    made.rows(4, 2)
    made.tokens(3)
    assert made.held() == BEFORE + PICTURE + AFTER


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize(("length", "rows"), [(14, 3), (12, 1), (11, 0)])
def test_a_copy_has_the_picture_and_the_positions_of_its_source(unified, length, rows):
    made = Filled(unified=unified)
    assert made.do(OpKind.COPY, 1, other=0, length=length)
    assert made.held(1) == BEFORE + PICTURE + AFTER[:rows]
    assert made.memory.position(1, length) == 8 + rows
    assert made.held(0) == BEFORE + PICTURE + AFTER


@pytest.mark.parametrize("unified", [False, True])
def test_a_sequence_is_copied_from_the_middle_of_a_picture(unified):
    made = Filled(picture=4, unified=unified)
    assert made.do(OpKind.COPY, 1, other=0, length=9)
    assert made.held(1) == BEFORE + PICTURE[:4]
    assert made.memory.lengths[1] == 9


@pytest.mark.parametrize(("length", "held"), [(14, 14), (12, 12), (11, 11), (5, 5)])
def test_a_snapshot_knows_its_picture_after_the_sequence_was_cleared(length, held):
    made = Filled()
    assert made.do(OpKind.SAVE, length=14, blob=BLOB)
    assert made.do(OpKind.CLEAR)
    assert made.memory.position(0, 14) == 14
    assert made.do(OpKind.RESTORE, length=length, blob=BLOB)
    assert made.held() == (BEFORE + PICTURE + AFTER)[:held]
    made.tokens(2)
    after = made.held()[-1]
    assert after == (held + 1 if held == 5 else held - 2), "text goes on behind the picture"


def test_a_snapshot_that_ends_inside_a_picture_is_restored_whole_or_before_it():
    made = Filled(picture=4)
    assert made.do(OpKind.SAVE, length=9, blob=BLOB)
    assert made.do(OpKind.RESTORE, 1, length=9, blob=BLOB)
    assert made.held(1) == BEFORE + PICTURE[:4]
    assert not made.do(OpKind.RESTORE, 2, length=7, blob=BLOB)
    assert made.do(OpKind.RESTORE, 2, length=5, blob=BLOB)
    assert made.held(2) == BEFORE


def test_a_hybrid_is_rewound_to_a_checkpoint_behind_the_picture():
    made = Filled("hybrid-mrope")
    assert made.do(OpKind.CHECKPOINT, length=14, blob=CHECKPOINT)
    made.tokens(5)
    assert made.do(OpKind.REWIND, length=14, blob=CHECKPOINT)
    assert made.held() == BEFORE + PICTURE + AFTER  # llama.cpp names the last position of both memories alone
    assert made.memory.position(0, 14) == AFTER[-1] + 1


def test_after_a_failure_rows_are_counted_from_positions_except_inside_a_picture():
    made = Filled()
    made.memory.lengths[0] = 12  # a pass failed after some of its rows
    assert made.memory.roll_back(0, 13)
    assert made.held() == BEFORE + PICTURE + AFTER[:2]
    part = Filled(picture=4)
    assert part.memory.roll_back(0, 9), "as many as we counted"
    assert part.held() == BEFORE + PICTURE[:4]
    assert not part.memory.roll_back(0, 7)
    assert part.held() == []
