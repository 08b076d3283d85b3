"""llama.cpp's state bytes: golden states of the pinned version, and what this build writes beside them.

`python -m tests.unit.backends.llamacpp.native.test_state_format` writes the golden states anew; do that only
after the parser was checked against a new llama.cpp.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.backends.llamacpp import Context
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE
from stretto.backends.llamacpp.native.state_format import cells_of, for_context
from tests.unit.backends.llamacpp.rig import options, tiny

GOLDEN = Path(__file__).parent / "golden"
CELLS = 3
FILES = {"by_token": "on", "by_channel": "off"}  # the value of flash_attention


def written(flash: str, *, streams: int = 1) -> np.ndarray:
    """The state that this build writes for three tokens."""
    context = Context(tiny("dense"), options(n_seq_max=streams, flash_attention=flash))
    assert context.decode(rows_for([(0, 0, CELLS)], vocab=context.vocab)) == 0
    state = np.empty(context.state_size(0, WHOLE), dtype=np.uint8)
    assert context.read_state(0, state, WHOLE) == len(state)
    context.close()
    return state


def golden(name: str) -> np.ndarray:
    return np.fromfile(GOLDEN / f"dense-{name}.state", dtype=np.uint8)


def numbers(state: np.ndarray) -> dict[int, int]:
    """Every number of the format by its offset, read by hand: not by the parser."""
    words = state[: len(state) // 4 * 4].view(np.uint32)
    found = {at: int(words[at // 4]) for at in range(8, 16 + 12 * CELLS + 8, 4)}
    by_channel, layers = found[16 + 12 * CELLS], found[20 + 12 * CELLS]
    at = 24 + 12 * CELLS
    for layer in range(2 * layers):
        header = [int(words[at // 4 + n]) for n in range(3)]
        found |= {at + 4 * n: value for n, value in enumerate(header)}
        values_by_channel = by_channel and layer >= layers
        at += 12 + (header[1] * header[2] * CELLS if values_by_channel else header[1] * CELLS)
    assert at == len(state), "the format's numbers account for every byte"
    return found


@pytest.mark.parametrize("name", FILES)
def test_this_build_writes_what_the_golden_state_has(name):
    """Values may round differently between processors; sizes, counts, types and positions may not."""
    assert numbers(written(FILES[name])) == numbers(golden(name))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("streams", [1, 4])
def test_cells(name, streams):
    assert cells_of(golden(name), 1) == (CELLS, 16 + 12 * CELLS)
    assert cells_of(written(FILES[name], streams=streams), streams).cells == CELLS


def test_values_by_token_become_values_by_channel():
    made = for_context(golden("by_token"), streams=1, by_token=False)
    assert made is not None
    assert numbers(made) == numbers(golden("by_channel"))


def test_every_value_is_where_it_belongs():
    state = golden("by_token")
    made = for_context(state, streams=1, by_token=False)
    layers = numbers(state)[20 + 12 * CELLS]
    row_bytes = numbers(state)[28 + 12 * CELLS]
    at = 24 + 12 * CELLS + layers * (12 + CELLS * row_bytes)
    for _ in range(layers):
        rows = state[at + 12 : at + 12 + CELLS * row_bytes].view(np.uint16).reshape(CELLS, -1)
        channels = made[at + 12 : at + 12 + CELLS * row_bytes].view(np.uint16).reshape(-1, CELLS)
        assert np.array_equal(channels, rows.T)
        at += 12 + CELLS * row_bytes


@pytest.mark.parametrize("flash", FILES.values())
def test_llama_cpp_takes_the_converted_state(flash):
    """Into the third of four streams, where generation goes on from it."""
    context = Context(tiny("dense"), options(flash_attention=flash))
    made = for_context(golden("by_token"), streams=4, by_token=flash == "on")
    assert context.write_state(2, made, WHOLE) == len(made)
    assert context.positions(2) == (0, CELLS - 1)
    assert context.decode(rows_for([(2, CELLS, 1)], vocab=context.vocab)) == 0
    assert np.isfinite(context.logits()).all()
    context.close()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, flash in FILES.items():
        written(flash).tofile(GOLDEN / f"dense-{name}.state")
