"""The simulated model: any difference in memory changes the text; and the latency model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.simulated import LatencyModel, SimulatedModel
from stretto.core.request import Scope
from stretto.testing import strategies
from tests.unit.core.rig import STEADY, ask, prompt

MODEL = SimulatedModel()
SCOPE = Scope("tenant:a", "")


def said(tokens, scope=SCOPE, seed=0) -> list[int]:
    """Eight tokens, each a function of everything before it."""
    cells = MODEL.cells(scope, tokens)
    output = []
    for _ in range(8):
        output.append(MODEL.next_token(cells.tobytes(), seed))
        cells.append(MODEL.cell(scope, output[-1]))
    return output


@STEADY
@given(strategies.tokens(min_size=2), st.data())
def test_one_wrong_cell_changes_the_text(tokens, data):
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = tokens[:]
    other[at] += 1
    assert said(tokens) != said(other)
    assert said(tokens) != said(tokens[:-1])


def test_scope_and_seed_change_the_text():
    text = prompt(9)
    assert len({tuple(said(text)), tuple(said(text, Scope("tenant:b", ""))), tuple(said(text, seed=1))}) == 3


def test_tokens_stay_within_the_vocabulary_and_texts_end():
    request = ask("a", 9, max_tokens=500)
    output = MODEL.continuation(request, count=500)
    assert min(output) >= 0
    assert max(output) < MODEL.vocab
    assert MODEL.eos in output
    stops = ask("a", 9, ignore_eos=False, stop_token_ids=frozenset({MODEL.eos}))
    assert MODEL.continuation(stops, count=500)[-1] == MODEL.eos


@pytest.mark.parametrize(("rows", "cost"), [(64, 64), (63, 126), (65, 66), (128, 128), (129, 130)])
def test_a_partial_tile_costs_double(rows, cost):
    """The remainder of a tile costs double: 63 rows cost more than 64."""
    latency = LatencyModel(beta_s=1.0, gamma_s=0.0, cliff_rows=64)
    assert latency.chunk_s(rows, 0) == cost
