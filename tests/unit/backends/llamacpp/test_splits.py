"""How llama.cpp cuts a call into passes, and that no row of a prompt has one to itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.llamacpp.splits import Chunk, even_out, passes


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
    assert list(passes(rows, 128)) == found


def test_the_longer_prompt_begins_a_row_earlier():
    chunks = {0: Chunk(3, 40, before=0), 1: Chunk(4, 41, before=7)}
    assert even_out(chunks, rows_max=512, spare=100) == ({1: 1}, [])


@pytest.mark.parametrize(("before", "spare"), [(0, 100), (7, 0)], ids=["nothing before it", "no room"])
def test_who_cannot_begin_earlier_has_a_call_to_itself(before, spare):
    chunks = {0: Chunk(3, 40, before=0), 1: Chunk(4, 41, before=before)}
    assert even_out(chunks, rows_max=512, spare=spare) == ({}, [1])


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 99)), min_size=2, max_size=16),
    st.sets(st.integers(0, 40), min_size=16, max_size=16),
    st.integers(0, 64),
)
def test_no_row_runs_alone(chunks, ids, spare):
    """But for prompts that are a single row, and what a single call is too long for."""
    spans = {
        at: Chunk(sequence, rows, before)
        for at, ((rows, before), sequence) in enumerate(zip(chunks, sorted(ids), strict=False))
    }
    even = even_out(spans, rows_max=512, spare=spare)
    assert sum(even.missing.values()) <= spare
    assert not set(even.missing) & set(even.apart)
    assert all(rows <= spans[at].before for at, rows in even.missing.items())
    together = {
        chunk.sequence: chunk.rows + even.missing.get(at, 0)
        for at, chunk in spans.items()
        if at not in even.apart
    }
    if len(together) > 1:
        assert all(count > 1 for _, count in passes(together, 512))
