"""States of a real context: found out when a number is none, and not for their positions."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.backends.llamacpp import Context
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE
from stretto.backends.llamacpp.memory.finite_state import can_trim
from stretto.backends.llamacpp.native.state_format import cells_of
from tests.unit.backends.llamacpp.rig import options, tiny

CELLS = 30


def saved(sequence: int, cache_type: str = "f16", **more) -> np.ndarray:
    context = Context(tiny("dense"), options(cache_type_k=cache_type, cache_type_v=cache_type, **more))
    assert context.decode(rows_for([(sequence, 0, CELLS)], vocab=context.vocab)) == 0
    state = np.empty(context.state_size(sequence, WHOLE), dtype=np.uint8)
    assert context.read_state(sequence, state, WHOLE) == len(state)
    context.close()
    return state


@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("cache_type", ["f16", "bf16", "f32"])
def test_one_number_that_is_none_is_found_anywhere(cache_type, unified, flash):
    state = saved(2, cache_type, unified=unified, flash_attention=flash)
    how = {"streams": 1 if unified else 4, "cache_type": cache_type}
    cells, begin = cells_of(state, how["streams"])
    assert cells == CELLS
    assert can_trim(state, CELLS - 1, **how)
    size = 4 if cache_type == "f32" else 2
    infinite = np.array([-np.inf], dtype=np.float32).view(np.uint8)[-size:]
    bits = np.array([-np.inf], dtype=np.float16).view(np.uint8) if cache_type == "f16" else infinite
    for at in (begin + 24, begin + (len(state) - begin) // 8 * 4, len(state) - 4):
        bad = state.copy()
        bad[at : at + size] = bits
        assert not can_trim(bad, CELLS - 1, **how)
        assert can_trim(bad, CELLS, **how)  # nothing is cut: these numbers are the request's own


def test_positions_are_no_numbers_of_the_model():
    state = saved(3)
    _, begin = cells_of(state, 4)
    state[begin - 12 : begin].view(np.uint32)[0] = 0x7E00  # as a float: NaN
    assert can_trim(state, 1, streams=4, cache_type="f16")


@pytest.mark.parametrize("state", [b"", b"x" * 13, b"\0" * 40, b"\xff" * 999])
def test_what_is_no_state_is_left_for_llama_cpp_to_refuse(state):
    assert can_trim(np.frombuffer(state, dtype=np.uint8), 1, streams=4, cache_type="f16")
