"""How llama.cpp cuts a call into ubatches, and that none has too few rows of a prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.llamacpp.passes.ubatches import Chunk, plan_calls, ubatches


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({0: 40, 1: 41}, [([0, 1], 40), ([1], 1)]),
        ({0: 40, 2: 40}, [([0], 40), ([2], 40)]),
        ({0: 3, 1: 9, 2: 3, 3: 9}, [([0, 1, 2, 3], 3), ([1], 6), ([3], 6)]),
        ({0: 65, 1: 65}, [([0, 1], 64), ([0, 1], 1)]),
        ({5: 300}, [([5], 128), ([5], 128), ([5], 44)]),
    ],
    ids=["one is longer", "a gap in the ids", "a gap comes up", "the pass is full", "alone"],
)
def test_passes(rows, found):
    assert [(list(left), count) for left, count in ubatches(rows, 128)] == found


def test_the_longer_prompt_begins_a_row_earlier():
    chunks = {0: Chunk(3, 40, before=0), 1: Chunk(4, 41, before=7)}
    assert plan_calls(chunks, rows_max=512, call_max=512, rows_min=2) == ([[0, 1]], {1: 1})


@pytest.mark.parametrize(("before", "call_max"), [(0, 512), (7, 81)], ids=["nothing before it", "no room"])
def test_who_cannot_begin_earlier_has_a_call_to_itself(before, call_max):
    chunks = {0: Chunk(3, 40, before=0), 1: Chunk(4, 41, before=before)}
    assert plan_calls(chunks, rows_max=512, call_max=call_max, rows_min=2) == ([[0], [1]], {})


def test_a_prompt_of_one_token_costs_its_neighbours_nothing():
    chunks = {at: Chunk(at, 40, before=0) for at in range(10)} | {10: Chunk(10, 1, before=0)}
    assert plan_calls(chunks, rows_max=512, call_max=512, rows_min=2) == ([list(range(10)), [10]], {})


def test_a_last_row_beside_a_call_that_is_full():
    chunks = {0: Chunk(0, 1, before=320), 1: Chunk(1, 511, before=0)}
    assert plan_calls(chunks, rows_max=512, call_max=512, rows_min=2) == ([[1], [0]], {0: 1})


@pytest.mark.parametrize(
    ("rows", "before", "found"),
    [
        (45, 20, ([[0, 1]], {1: 3})),
        (45, 2, ([[0], [1]], {1: 2})),
        (48, 0, ([[0, 1]], {})),
        (5, 9, ([[0, 1]], {1: 3})),
    ],
    ids=["earlier", "nothing before it", "enough", "itself too few"],
)
def test_where_eight_rows_are_needed(rows, before, found):
    chunks = {0: Chunk(3, 40, before=0), 1: Chunk(4, rows, before=before)}
    assert plan_calls(chunks, rows_max=512, call_max=512, rows_min=8) == found


def test_what_had_begun_with_too_few_rows_runs_again_from_the_start():
    assert plan_calls({0: Chunk(3, 7, before=7)}, rows_max=512, call_max=512, rows_min=8) == ([[0]], {0: 7})
    chunks = {0: Chunk(3, 20, before=5), 1: Chunk(4, 25, before=0)}
    assert plan_calls(chunks, rows_max=512, call_max=512, rows_min=8) == ([[0, 1]], {0: 5})


def test_a_short_prompt_runs_whole_and_alone():
    chunks = {0: Chunk(3, 40, before=0), 1: Chunk(4, 2, before=3)}
    assert plan_calls(chunks, rows_max=512, call_max=512, rows_min=8) == ([[0], [1]], {1: 3})


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 99)), min_size=1, max_size=16),
    st.sets(st.integers(0, 40), min_size=16, max_size=16),
    st.sampled_from((256, 512)),
    st.sampled_from((2, 8)),
)
def test_no_pass_has_too_few_rows(chunks, ids, rows_max, rows_min):
    """But for prompts that are as short: these run whole and alone."""
    spans = {
        at: Chunk(sequence, rows, before)
        for at, ((rows, before), sequence) in enumerate(zip(chunks, sorted(ids), strict=False))
    }
    plan = plan_calls(spans, rows_max=rows_max, call_max=3200, rows_min=rows_min)
    assert sorted(at for call in plan.calls for at in call) == list(spans)
    assert all(rows <= spans[at].before for at, rows in plan.missing.items())
    for call in plan.calls:
        rows = {spans[at].sequence: spans[at].rows + plan.missing.get(at, 0) for at in call}
        assert sum(rows.values()) <= 3200
        whole = len(call) == 1 and plan.missing.get(call[0], 0) == spans[call[0]].before
        assert whole or all(step >= rows_min for _, step in ubatches(rows, rows_max))
        begun = {at for at in call if 0 < spans[at].before < rows_min}
        assert all(plan.missing[at] == spans[at].before for at in begun)


@pytest.mark.parametrize(
    ("rows", "before", "more"),
    [(123, 200, 5), (120, 200, 0), (128, 200, 0), (61, 200, 7), (61, 5, 5), (123, 0, 0)],
)
def test_the_last_pass_of_a_chunk_of_several_has_enough_rows(rows, before, more):
    plan = plan_calls({0: Chunk(3, rows, before)}, rows_max=60, call_max=512, rows_min=8)
    assert plan == ([[0]], {0: more} if more else {})
