"""Tokens of a tick as rows of their connections' columns, all at once.

In most ticks the requests of the tick before get one token each. Where each token goes is worked out once for
them: what is left for a tick is a copy of its tokens, not a call for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

ONE = array("I", [1])


class Table(Protocol):
    """The columns of one connection. Equal tables are the same."""

    def extend(self, numbers: array[int], counts: array[int], tokens: array[int]) -> None: ...


class Place(Protocol):
    """Where a stream's tokens go: rows with this number."""

    @property
    def table(self) -> Table: ...
    @property
    def number(self) -> int: ...


class TickRows:
    """The rows of these requests, in this order. `places`: one of each."""

    def __init__(self, requests: Sequence[str], places: Sequence[Place]) -> None:
        self.requests = list(requests)
        self._all = len(requests)
        positions: dict[Table, list[int]] = {}
        for position, place in enumerate(places):
            positions.setdefault(place.table, []).append(position)
        self._parts = [
            (table, array("I", [places[position].number for position in found]), ONE * len(found), found)
            for table, found in positions.items()
        ]

    @classmethod
    def of(cls, requests: Sequence[str], streams: Iterable[Place | None]) -> TickRows | None:
        """None if one of them has no place: its tokens need more than a row."""
        places: list[Place] = []
        for place in streams:
            if place is None:
                return None
            places.append(place)
        return cls(requests, places) if places else None

    def take(self, tokens: array[int]) -> None:
        """One token of each request."""
        for table, numbers, counts, positions in self._parts:
            mine = tokens if len(positions) == self._all else array("i", map(tokens.__getitem__, positions))
            table.extend(numbers, counts, mine)
