"""Deterministic mode: what it leaves out, what it refuses by name, and what is measured at load."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.backends.llamacpp import Context, LlamaCppBackend
from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE
from stretto.backends.llamacpp.invariance import batch_invariant
from stretto.errors import DeterminismError
from tests.unit.backends.llamacpp.rig import options, tiny


def context(kind: str = "dense", *, machine: Machine | None = None, **more) -> Context:
    return Context(tiny(kind), options(**{"n_seq_max": 1, "deterministic": True} | more), machine=machine)


def state(made: Context, passes: list[tuple[int, int]]) -> bytes:
    made.remove(0, 0)
    for start, count in passes:
        assert made.decode(rows_for([(0, start, count)], vocab=made.vocab)) == 0
    bytes_ = np.empty(made.state_size(0, WHOLE), dtype=np.uint8)
    made.read_state(0, bytes_, WHOLE)
    return bytes_.tobytes()


def test_the_verdict_is_what_a_comparison_of_states_says():
    made = context()
    decoded = state(made, [(0, 32), *((at, 1) for at in range(32, 40))])
    same = decoded == state(made, [(0, 40)])
    assert batch_invariant(made) == same
    assert made.positions(0) == (-1, -1), "it leaves nothing behind"


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        ("dense", {"unified": True}, "kv_layout: unified"),
        ("hybrid-lfm2", {}, "hybrid or recurrent"),
        ("recurrent", {}, "hybrid or recurrent"),
        ("swa", {"swa_full": False}, "swa_full: false"),
        ("dense", {"flash_attention": "on", "machine": Machine()}, "flash attention"),  # llama.cpp's
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(kind, more, named):
    with pytest.raises(DeterminismError, match=named) as caught:
        context(kind, **more)
    assert not caught.value.retryable
    assert "deterministic: auto" in caught.value.hint


@pytest.mark.parametrize("kind", ["dense", "moe", "swa"])
def test_no_second_context_and_no_tiles(kind):
    for machine in (None, Machine()):
        plan = context(kind, context_window=2048, machine=machine).plan
        assert not plan.side_context
        assert not plan.media_pass_rows
        assert not plan.flash_attention or plan.row_attention
    assert not plan.flash_attention, "llama.cpp's own adds in another order in larger passes"


def test_a_window_too_small_to_measure_is_refused():
    with pytest.raises(DeterminismError, match="context_window"):
        batch_invariant(context(context_window=16))


def test_rows_that_depend_on_their_neighbours_are_refused():
    """Weights in float32 go through another kernel where a pass has more rows, here or at the next size."""
    made = context(n_seq_max=8)
    alone = state(made, [(0, 16), (16, 1)])
    made.remove(0, 0)
    assert made.decode(rows_for([(0, 0, 16)], vocab=made.vocab)) == 0
    for at in range(1, 8):
        assert made.decode(rows_for([(at, 0, 8)], vocab=made.vocab)) == 0
    beside = [(0, 16, 1), *((at, 8, 1) for at in range(1, 8))]
    assert made.decode(rows_for(beside, vocab=made.vocab)) == 0
    bytes_ = np.empty(made.state_size(0, WHOLE), dtype=np.uint8)
    made.read_state(0, bytes_, WHOLE)
    if bytes_.tobytes() == alone:
        pytest.skip("these kernels do not depend on neighbours")
    with pytest.raises(DeterminismError, match="rows beside it"):
        batch_invariant(made)


def test_the_core_is_told():
    backend = LlamaCppBackend(context())
    assert backend.capabilities.batch_invariant == batch_invariant(backend.context)
    plain = LlamaCppBackend(context(deterministic=False))
    assert plain.capabilities.batch_invariant, "not asked for, not measured"
    backend.close()
    plain.close()
