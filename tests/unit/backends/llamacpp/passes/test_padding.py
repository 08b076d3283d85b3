"""Gaps between ids that write: they take part in the pass, and nobody notices."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.library import batch_invariant_rows_min
from stretto.backends.llamacpp.passes.padding import Padding
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import Binding, PassFailure
from tests.unit.backends.llamacpp.passes.test_calls import tick
from tests.unit.backends.llamacpp.rig import ask, make_backend, text

WRITERS = (0, 2, 4)
ROUNDING = (
    1e-5 if batch_invariant_rows_min() == 2 else 3e-4
)  # of logits, between passes of three and of five rows; ARM rounds more


def begun(**more):
    """Slots 0, 2 and 4 write; of slot 1 a part of the prompt has run, slot 3 is empty."""
    backend = make_backend("dense", n_seq_max=5, flash_attention="off", **more)
    bind = tuple(Binding(slot, ask(f"r{slot}", text(12, slot)), array("i")) for slot in (*WRITERS, 1))
    spans = [(slot, 0, text(12, slot), 1) for slot in WRITERS]
    backend.launch(tick(0, *spans, (1, 0, text(12, 1)[:8], 0), bind=bind))
    return backend, dict(zip(WRITERS, backend.collect().tokens, strict=True))


@pytest.fixture
def backend_and_tokens():
    backend, tokens = begun()
    yield backend, tokens
    backend.close()


def write(backend, tokens, number: int, at: int):
    """A token of each writer. Answers it, the logits, and the sequences of each call."""
    calls, seen, decode = [], [], backend.context.decode

    def spy(rows):
        code = decode(rows)
        calls.append(rows.sequences.tolist())
        seen.append(backend.context.logits().copy())
        return code

    backend.context.decode = spy
    backend.launch(tick(number, *((slot, at, [tokens[slot]], 1) for slot in WRITERS), decode=len(WRITERS)))
    backend.context.decode = decode
    outcome = backend.collect()
    assert outcome.failure is None
    return dict(zip(WRITERS, outcome.tokens, strict=True)), np.concatenate(seen), calls


def test_gaps_of_one_sequence_take_part_and_are_forgotten(backend_and_tokens):
    backend, tokens = backend_and_tokens
    tokens, _, calls = write(backend, tokens, 1, 12)
    assert calls == [[0, 1, 2, 3, 4]]
    assert backend.memory.lengths == [13, 8, 13, 0, 13]
    assert [backend.context.positions(slot)[1] for slot in range(5)] == [12, 7, 12, -1, 12]


def test_the_texts_are_those_of_a_backend_that_leaves_gaps(backend_and_tokens):
    """Of those who write, but for how another size rounds; of the prompt in the gap, to the last bit."""
    (filled, ours), (plain, theirs) = backend_and_tokens, begun()
    plain._padding = None
    for number in range(1, 6):
        ours, right, _ = write(filled, ours, number, 11 + number)
        theirs, expected, calls = write(plain, theirs, number, 11 + number)
        assert calls == [[0, 2, 4]]
        assert ours == theirs
        assert np.allclose(right, expected, atol=ROUNDING)
    for backend in (filled, plain):
        backend.launch(tick(6, (1, 8, text(12, 1)[8:], 1)))
    assert filled.collect().tokens == plain.collect().tokens
    assert np.array_equal(filled.context.logits(), plain.context.logits())
    plain.close()


def test_not_while_a_copy_is_pending_nor_where_numbers_were_none(backend_and_tokens):
    backend, tokens = backend_and_tokens
    backend._nan_isolation.nan_sequences.add(1)
    tokens, _, calls = write(backend, tokens, 1, 12)
    assert calls == [[0, 2, 3, 4]]
    backend.memory.copying.add(3)
    _, _, calls = write(backend, tokens, 2, 13)
    assert calls == [[0, 2, 4]]


@pytest.mark.parametrize("length", [256, 512])
def test_a_sequence_that_is_longer_than_those_who_write_is_left_out(length):
    backend, tokens = begun()
    backend.memory.lengths[1] = length  # 512: the window is full
    _, _, calls = write(backend, tokens, 1, 12)
    assert calls == [[0, 2, 3, 4]]
    backend.close()


def test_what_could_not_be_emptied_takes_no_part(backend_and_tokens):
    """One sequence of which nothing is certain must not fail the pass of the others."""
    backend, tokens = backend_and_tokens
    remove = backend.context.remove
    backend.context.remove = lambda sequence, start: sequence != 1 and remove(sequence, start)
    made = tick(1, *((slot, 12, [tokens[slot]], 1) for slot in WRITERS), decode=len(WRITERS))
    made.ops = (KvOp(OpKind.CLEAR, 1),)
    calls, decode = [], backend.context.decode
    backend.context.decode = lambda rows: (calls.append(rows.sequences.tolist()), decode(rows))[1]
    backend.launch(made)
    outcome = backend.collect()
    assert not outcome.op_results[0].ok
    assert outcome.failure is None
    assert calls == [[0, 2, 3, 4]]


def test_nor_does_one_that_holds_something_else_than_we_think(backend_and_tokens):
    backend, tokens = backend_and_tokens
    backend.memory.lengths[1] = 5
    _, _, calls = write(backend, tokens, 1, 12)
    assert calls == [[0, 2, 3, 4]]


def test_it_is_forgotten_when_the_call_fails_too(backend_and_tokens):
    backend, tokens = backend_and_tokens
    decode = backend.context.decode

    def fail(rows):
        decode(rows)
        return 1

    backend.context.decode = fail
    backend.launch(tick(1, *((slot, 12, [tokens[slot]], 1) for slot in WRITERS), decode=len(WRITERS)))
    backend.context.decode = decode
    assert backend.collect().failure is PassFailure.NO_ROOM
    assert [backend.context.positions(slot)[1] for slot in (1, 3)] == [7, -1]
    assert backend.recover({0: 12, 1: 8, 2: 12, 4: 12}) == frozenset()


# --- copies of short sequences -----------------------------------------------------------------------


@pytest.mark.parametrize("relayed", [True, False])
def test_a_short_sequence_is_copied_at_once_and_a_long_one_with_the_next_pass(relayed):
    backend, _ = begun()
    backend.memory._state_copy_max = 12 if relayed else 11
    (result,), broken = backend.memory.execute([KvOp(OpKind.COPY, 3, 0, 9)])
    assert result.ok
    assert not broken
    assert backend.memory.copying == (set() if relayed else {3})
    assert backend.memory.lengths[3] == 9
    assert backend.context.positions(3) == (0, 8)
    prompt = [*text(12, 0)[:9], *text(12, 5)[:4]]
    backend.launch(tick(1, (3, 9, prompt[9:], 1), bind=(Binding(3, ask("r3", prompt), array("i")),)))
    copied = backend.context.logits().copy()
    backend.collect()
    alone = make_backend("dense", n_seq_max=5, flash_attention="off")
    bind = (Binding(0, ask("alone", prompt), array("i")),)
    alone.launch(tick(0, (0, 0, prompt[:9], 0), bind=bind))
    alone.launch(tick(1, (0, 9, prompt[9:], 1)))
    assert np.array_equal(copied, alone.context.logits())
    backend.close()
    alone.close()


def test_no_state_is_written_where_a_pending_copy_may_read():
    backend, _ = begun()
    backend.memory._state_copy_max = 12
    backend.memory.copying.add(4)
    backend.memory.execute([KvOp(OpKind.COPY, 3, 0, 9)])
    backend.launch(tick(1, (3, 9, [1, 2, 3], 0), bind=(Binding(3, ask("r3", text(12, 0)), array("i")),)))
    assert backend.collect().failure is None
    assert not backend.memory.copying
    backend.close()


def test_copies_from_one_sequence_are_read_once():
    backend, _ = begun()
    backend.memory._state_copy_max = 12
    read, seen = backend.context.read_state, []
    backend.context.read_state = lambda sequence, *more: (seen.append(sequence), read(sequence, *more))[1]
    backend.memory.execute([KvOp(OpKind.COPY, 3, 0, 9), KvOp(OpKind.COPY, 1, 0, 9)])
    assert seen == [0]
    assert backend.memory.lengths == [12, 9, 12, 9, 12]
    assert backend.context.positions(1) == backend.context.positions(3) == (0, 8)
    backend.memory.execute([KvOp(OpKind.COPY, 3, 0, 7), KvOp(OpKind.COPY, 1, 2, 9)])
    assert seen == [0, 0, 2]  # another tick, and another sequence
    backend.close()


# --- rows in groups of four --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writers", "lengths", "ran"),
    [
        ((0, 1, 2), {}, [0, 1, 2, 3]),
        ((1, 2, 3), {0: 100, 4: 50}, [1, 2, 3, 4]),  # the shorter one
        ((1, 2, 3), {0: 100, 4: 300}, [0, 1, 2, 3]),
        ((0, 1, 2), {3: 300}, [0, 1, 2]),  # its own attention would cost more
        ((0, 1, 2, 4), {}, [0, 1, 2, 3, 4]),  # a gap, and then there are five
        ((0, 1), {}, [0, 1]),
        ((2,), {}, [2]),
    ],
)
def test_three_rows_have_a_fourth_beside_them(writers, lengths, ran):
    backend = make_backend("dense", n_seq_max=5, flash_attention="off")
    backend.memory.lengths = [lengths.get(sequence, 0) for sequence in range(5)]
    backend.context.positions = lambda sequence: (0, backend.memory.lengths[sequence] - 1)
    padding = Padding(backend.context, backend.memory, replace(backend.quirks, pad_to_four=True))
    count = len(writers)
    ones, flags = array("i", [1] * count), array("b", [1] * count)
    rows = Rows(list(range(count)), ones, array("i", [400] * count), array("i", writers), flags, count)
    added = padding.add(rows, ())
    assert rows.sequences.tolist() == ran
    assert sorted(added) == sorted(set(ran) - set(writers))
    assert sum(rows.outputs) == count
    assert [p for s, p in zip(rows.sequences, rows.positions, strict=True) if s in added] == [
        backend.memory.lengths[sequence] for sequence in sorted(added)
    ]
    backend.close()
