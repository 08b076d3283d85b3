"""Cells of a unified pool: shared runs take no cells, and come free with their last holder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.kv.cells import CellPool
from tests.unit.core.rig import STEADY


def test_growing_takes_cells_until_there_are_none():
    pool = CellPool(10, 2)
    assert pool.grow(0, 6)
    assert not pool.grow(1, 5)
    assert pool.grow(1, 4)
    assert (pool.held(0), pool.held(1), pool.free) == (6, 4, 0)


def test_sharing_takes_none_and_frees_with_the_last_holder():
    pool = CellPool(10, 3)
    pool.grow(0, 8)
    pool.share(0, 1, 5)
    assert (pool.free, pool.held(1)) == (2, 5)
    assert (pool.gain(0), pool.gain(1)) == (3, 0)
    pool.trim(0, 0)
    assert pool.free == 5
    pool.trim(1, 2)
    assert pool.free == 8
    pool.check()


def test_a_shared_run_does_not_grow_for_both():
    pool = CellPool(20, 2)
    pool.grow(0, 5)
    pool.share(0, 1, 5)
    pool.grow(0, 2)
    pool.grow(1, 3)
    assert (pool.held(0), pool.held(1), pool.free) == (7, 8, 10)


def test_used_by_counts_shared_cells_once():
    pool = CellPool(20, 3)
    pool.grow(0, 8)
    pool.share(0, 1, 5)
    pool.grow(1, 2)
    assert pool.used_by([0, 1]) == 10
    assert pool.used_by([1]) == 7


def test_copying_into_a_sequence_that_holds_cells_is_our_bug():
    pool = CellPool(20, 2)
    pool.grow(0, 3)
    pool.grow(1, 3)
    with pytest.raises(AssertionError, match="still holds cells"):
        pool.share(0, 1, 2)


@STEADY
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("grow", "cut", "share")),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 12),
        ),
        max_size=40,
    )
)
def test_against_cells_with_names(moves):
    """The pool only counts; a model that gives every cell a name must count the same."""
    pool, held, fresh = CellPool(40, 4), [[] for _ in range(4)], iter(range(10_000))
    for kind, one, two, count in moves:
        if kind == "grow":
            used = {cell for cells in held for cell in cells}
            assert pool.grow(one, count) == (count <= 40 - len(used))
            if count <= 40 - len(used):
                held[one] += [next(fresh) for _ in range(count)]
        elif kind == "cut":
            pool.trim(one, min(count, len(held[one])))
            del held[one][count:]
        elif one != two and not held[two]:
            pool.share(one, two, min(count, len(held[one])))
            held[two] = held[one][:count]
        used = {cell for cells in held for cell in cells}
        assert pool.free == 40 - len(used)
        assert [pool.held(index) for index in range(4)] == [len(cells) for cells in held]
        others = [{c for other in held if other is not cells for c in other} for cells in held]
        assert [pool.gain(index) for index in range(4)] == [
            len(set(cells) - rest) for cells, rest in zip(held, others, strict=True)
        ]
        pool.check()
