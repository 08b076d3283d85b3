"""From rows of a sequence to llama.cpp's positions, where pictures share them (M-RoPE).

The core and the ledger count rows: each takes a cell. With M-RoPE a picture of w x h rows is a grid. All its
rows have one position in the text, that of the first, and differ by row and column; what follows goes on
max(w, h) positions later. Batches, trims and copies of llama.cpp name positions, so rows are translated
here and nowhere else. A trim cannot end inside a grid: its rows cannot be told apart by position.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import NamedTuple


class Grid(NamedTuple):
    """A picture in a sequence: its first row, and its size in rows of the model's input."""

    start: int
    width: int
    height: int

    @property
    def end(self) -> int:
        return self.start + self.width * self.height

    @property
    def positions(self) -> int:
        """By how much the position of what follows moves on."""
        return max(self.width, self.height)


Grids = tuple[Grid, ...]  # of a sequence, in order


def position_of(grids: Grids, row: int) -> int:
    """The position of a row in the text; that of its picture for a row of one."""
    surplus = 0  # rows without a position of their own
    for grid in grids:
        if row < grid.end:
            return min(row, grid.start) - surplus
        surplus += grid.end - grid.start - grid.positions
    return row - surplus


def rows_until(grids: Grids, position: int) -> int:
    """Rows up to this position, with all of a picture that begins there."""
    rows = position + 1
    for grid in grids:
        if position_of(grids, grid.start) > position:
            break
        rows = max(grid.end, rows + grid.end - grid.start - grid.positions)
    return rows


def inside(grids: Grids, row: int) -> bool:
    """Whether a sequence that ends here would end inside a picture."""
    return any(grid.start < row < grid.end for grid in grids)


def grid_planes(grid: Grid, position: int, offset: int, count: int) -> array[int]:
    """The four positions of rows of a picture, plane by plane: text, row, column, unused."""
    rows = range(offset, offset + count)
    planes = array("i", repeat(position, count))
    planes.extend(position + row // grid.width for row in rows)
    planes.extend(position + row % grid.width for row in rows)
    planes.extend(repeat(0, count))
    return planes


def text_planes(position: int, count: int) -> array[int]:
    """The four positions of rows that follow each other like text: those of a sound."""
    return array("i", range(position, position + count)) * 4
