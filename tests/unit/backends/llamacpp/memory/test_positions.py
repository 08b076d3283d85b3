"""Rows and positions of a sequence with pictures that share them, against a list that is written out."""

from __future__ import annotations

import pytest

from stretto.backends.llamacpp.memory.positions import (
    Grid,
    grid_planes,
    inside,
    position_of,
    rows_until,
    text_planes,
)

ONE = (Grid(3, 4, 2),)
TWO = (Grid(0, 1, 3), Grid(3, 2, 2), Grid(9, 1, 1))


def listed(grids, rows: int) -> list[int]:
    """The position of each row, by counting."""
    found: list[int] = []
    position = 0
    while len(found) < rows:
        grid = next((grid for grid in grids if grid.start == len(found)), None)
        found += [position] * (grid.width * grid.height if grid else 1)
        position += max(grid.width, grid.height) if grid else 1
    return found


@pytest.mark.parametrize("grids", [(), ONE, TWO])
def test_rows_have_the_positions_of_a_written_list(grids):
    rows = 20
    positions = listed(grids, rows)
    assert [position_of(grids, row) for row in range(rows)] == positions
    for last in range(max(positions)):
        assert rows_until(grids, last) == sum(position <= last for position in positions)
    assert rows_until(grids, -1) == 0


def test_an_end_inside_a_picture_is_noticed_and_its_edges_are_none():
    assert [row for row in range(20) if inside(ONE, row)] == [4, 5, 6, 7, 8, 9, 10]
    assert [row for row in range(20) if inside(TWO, row)] == [1, 2, 4, 5, 6]


def test_planes_of_a_part_of_a_picture():
    assert list(grid_planes(Grid(3, 4, 2), 3, 2, 4)) == [3, 3, 3, 3, 3, 3, 4, 4, 5, 6, 3, 4, 0, 0, 0, 0]
    assert list(text_planes(7, 2)) == [7, 8] * 4
