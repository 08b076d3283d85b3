"""Host memory for snapshots: a few large pieces that are reused and never returned.

The first touch of fresh memory costs ten times a copy into memory that was touched before, so space is taken
first-fit from the lowest address and grown in large pieces under a byte budget. Does not know formats.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.tuning import ARENA_PIECE_BYTES
from stretto.errors import InvariantError

ALIGNMENT = 64


class _Place(NamedTuple):
    piece: int
    offset: int
    room: int
    used: int


class Arena:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._pieces: list[NDArray[np.uint8]] = []
        self._free: list[tuple[int, int, int]] = []  # (piece, offset, room), ascending
        self._places: dict[int, _Place] = {}

    @property
    def bytes_reserved(self) -> int:
        return sum(len(piece) for piece in self._pieces)

    @property
    def bytes_used(self) -> int:
        return sum(place.used for place in self._places.values())

    @property
    def blobs(self) -> list[int]:
        return sorted(self._places)

    def __contains__(self, blob: int) -> bool:
        return blob in self._places

    def take(self, blob: int, size: int) -> NDArray[np.uint8] | None:
        """Room for a new blob, or None when the budget does not hold it."""
        if blob in self._places:
            raise InvariantError(f"blob {blob} exists already")
        room = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        at = next((n for n, free in enumerate(self._free) if free[2] >= room), None)
        if at is None:
            if not self._grow(room):
                return None
            at = next(n for n, free in enumerate(self._free) if free[2] >= room)
        piece, offset, have = self._free.pop(at)
        if have > room:
            self._free.insert(at, (piece, offset + room, have - room))
        self._places[blob] = _Place(piece, offset, room, size)
        return self.view(blob)

    def _grow(self, room: int) -> bool:
        left = self.bytes_max - self.bytes_reserved
        size = max(room, min(ARENA_PIECE_BYTES, left))
        if size > left:
            return False
        try:
            self._pieces.append(np.empty(size, dtype=np.uint8))
        except MemoryError:
            return False
        self._free.append((len(self._pieces) - 1, 0, size))
        return True

    def view(self, blob: int) -> NDArray[np.uint8]:
        place = self._places[blob]
        return self._pieces[place.piece][place.offset : place.offset + place.used]

    def drop(self, blob: int) -> bool:
        place = self._places.pop(blob, None)
        if place is None:
            return False
        insort(self._free, (place.piece, place.offset, place.room))
        self._merge()
        return True

    def _merge(self) -> None:
        merged: list[tuple[int, int, int]] = []
        for piece, offset, room in self._free:
            if merged and merged[-1][0] == piece and merged[-1][1] + merged[-1][2] == offset:
                merged[-1] = (piece, merged[-1][1], merged[-1][2] + room)
            else:
                merged.append((piece, offset, room))
        self._free = merged

    def close(self) -> None:
        self._pieces.clear()
        self._free.clear()
        self._places.clear()
