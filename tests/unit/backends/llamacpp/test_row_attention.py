"""Flash attention row by row: the same numbers however a prompt is cut, and whoever runs beside it."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.plan import resolve
from stretto.backends.llamacpp.tuning import ROW_ATTENTION_UBATCH_MAX
from stretto.core.limits import Limits
from stretto.core.tick import Binding
from tests.unit.backends.llamacpp.passes.test_calls import tick
from tests.unit.backends.llamacpp.rig import (
    TOLERANCE,
    Loop,
    Reference,
    ask,
    make_backend,
    options,
    text,
    tiny,
)

TOKENS = 400  # llama.cpp divides a text of more than 256 tokens among its threads where a row is alone
EXACT = 1e-4  # matrix kernels take one row and several in another order; a text that is divided is 1e-2 off


ARM = Machine(half_precision=True)
OWN = Machine(half_precision=True, own_attention_heads=(16,))


def backend_by_row(**more):
    sizes = {"n_seq_max": 3, "context_window": 1024, "n_batch": 512, "n_ubatch": 512, "n_threads": 2}
    backend = make_backend("dense", machine=ARM, **sizes | more)
    assert backend.quirks.row_attention
    return backend


def run(backend, number: int, *spans, **more) -> np.ndarray:
    """The logits of a tick's last call."""
    backend.launch(tick(number, *spans, **more))
    assert backend.collect().failure is None
    return backend.context.logits().copy()


@pytest.mark.parametrize(
    ("asked", "flash", "row_attention"),
    [
        ({}, True, True),
        ({"context_window": 4096}, True, True),
        ({"context_window": 8192}, False, False),
        ({"flash_attention": "long", "context_window": 4096}, False, False),
        ({"flash_attention": "off"}, False, False),
        ({"flash_attention": "on"}, True, False),
        ({"cache_type_v": "bf16"}, True, False),  # not plain; q8_0 does not fit heads of 16
        ({"unified": True}, True, False),
    ],
)
def test_what_auto_means_where_the_processor_has_half_precision(asked, flash, row_attention):
    plan = resolve(tiny("dense"), options(**{"n_ubatch": 512, "n_batch": 512} | asked), ARM)
    assert (plan.flash_attention, plan.n_ubatch == ROW_ATTENTION_UBATCH_MAX) == (flash, row_attention)


def test_our_own_attention_has_windows_of_any_length():
    long = resolve(tiny("dense"), options(context_window=65536), OWN)
    assert long.n_ubatch == ROW_ATTENTION_UBATCH_MAX
    asked = options(context_window=8192, flash_attention="long")
    assert not resolve(tiny("dense"), asked, OWN).flash_attention


def test_elsewhere_it_means_only_for_long_prompts():
    assert not resolve(tiny("dense"), options(), Machine()).flash_attention


def test_a_row_alone_gives_what_it_gives_beside_others():
    backend = backend_by_row()
    bind = tuple(Binding(slot, ask(f"r{slot}", text(TOKENS, slot)), array("i")) for slot in range(3))
    for slot in range(3):
        for begin in range(0, TOKENS, 50):
            part = text(TOKENS, slot)[begin : begin + 50]
            made = tick(0, (slot, begin, part, int(begin + 50 == TOKENS)), bind=bind)
            bind = ()
            backend.launch(made)
            outcome = backend.collect()
            assert outcome.failure is None
        if slot == 1:
            token = outcome.tokens[0]
    seen, decode = [], backend.context.decode
    backend.context.decode = lambda rows: (seen.append(rows.sequences.tolist()), decode(rows))[1]
    together = run(backend, 1, *((slot, TOKENS, [token], 1) for slot in range(3)), decode=3)[1]
    backend.recover(dict.fromkeys(range(3), TOKENS))
    alone = run(backend, 2, (1, TOKENS, [token], 1), decode=1)[0]
    assert [len(set(row)) for row in seen] == [3, 1 if backend.measures.lone_row_invariant else 2]
    assert backend.memory.lengths == [TOKENS, TOKENS + 1, TOKENS]
    assert np.abs(alone - together).max() <= EXACT
    backend.close()


def test_prompts_give_the_same_numbers_however_they_are_cut():
    found = []
    for step in (7, 50, 56):
        backend = backend_by_row()
        bind = (Binding(0, ask("r", text(TOKENS, 1)), array("i")),)
        at = 0
        while at < TOKENS:
            part = text(TOKENS, 1)[at : at + step]
            at += len(part)
            logits = run(backend, at, (0, at - len(part), part, int(at == TOKENS)), bind=bind)
            bind = ()
        found.append(logits[0])
        backend.close()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_a_long_prompt_is_handed_over_by_token():
    backend = backend_by_row(context_window=4096)
    side = backend.side_context
    assert side is not None
    handed_over = side.handed_over
    requests = [ask(f"r{i}", text(size, i), max_tokens=6) for i, size in enumerate((1500, 30, 1100, 300))]
    outputs = Loop(backend, Limits(n_seq_max=3, n_batch=512, cache="none")).run(*requests)
    backend.close()
    assert side.handed_over > handed_over
    reference = Reference(tiny("dense"), window=4096)
    assert max(reference.gap(r.tokens, outputs[r.id]) for r in requests) <= TOLERANCE
    reference.close()
