"""Calls of a tick without flash attention: the last row of a cached prompt, and a call that fails."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from stretto.backends.llamacpp.native.library import batch_invariant_rows_min
from stretto.core.tick import Binding, PassFailure, Tick
from tests.unit.backends.llamacpp.rig import ask, make_backend, text

Span = tuple[int, int, list[int], int]  # slot, start, tokens, outputs


def tick(number: int, *spans: Span, bind: tuple[Binding, ...] = (), decode: int = 0) -> Tick:
    made = Tick(number, bind=bind, decode_spans=decode, decode_rows=decode)
    for slot, start, tokens, outputs in spans:
        made.slots.append(slot)
        made.sequences.append(slot)
        made.starts.append(start)
        made.counts.append(len(tokens))
        made.outputs.append(outputs)
        made.tokens.extend(tokens)
    return made


@pytest.fixture
def backend():
    made = make_backend("dense", n_seq_max=2, flash_attention="off")
    yield made
    made.close()


def begin(backend) -> int:
    """All of one prompt and all but the last row of another; answers the first one's token."""
    long, short = ask("long", text(30, 1)), ask("short", text(10, 2))
    bind = (Binding(0, long, array("i")), Binding(1, short, array("i")))
    backend.launch(tick(0, (0, 0, text(30, 1)[:29], 0), (1, 0, text(10, 2), 1), bind=bind))
    return backend.collect().tokens[0]


def test_the_last_row_of_a_prompt_has_company(backend):
    token, calls = begin(backend), []
    decode = backend.context.decode
    backend.context.decode = lambda rows: (calls.append(rows.positions.tolist()), decode(rows))[1]
    backend.launch(tick(1, (1, 10, [token], 1), (0, 29, text(30, 1)[29:], 1), decode=2))
    assert backend.collect().failure is None
    assert calls == [[10], list(range(30 - batch_invariant_rows_min(), 30))]
    assert backend.memory.lengths == [30, 11]


def test_who_had_not_run_when_a_call_failed_keeps_everything(backend):
    token, decode = begin(backend), backend.context.decode
    backend.context.decode = lambda rows: 1
    backend.launch(tick(1, (1, 10, [token], 1), (0, 29, text(30, 1)[29:], 1), decode=2))
    assert backend.collect().failure is PassFailure.NO_ROOM
    backend.context.decode = decode
    assert backend.recover({0: 29, 1: 10}) == frozenset()
    assert np.array_equal(backend.memory.lengths, [29, 10])
