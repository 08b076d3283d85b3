"""An encoder for the simulated backend: rows by the size of a picture or the length of a sound.

A picture has a row for every 32 x 32 pixels, computed whole, between two tokens; a sound one for each tenth
of a second, computed in chunks, without any. `encode_s` is the time of a batch. A picture that is one pixel
high cannot be encoded, and one that is one pixel wide is refused, so that tests can see both.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from stretto.backends.media import EncodedRows, Kind, MediaPart, Medium, Part, Picture
from stretto.errors import InvalidMediaError, StrettoError

TILE_PIXELS = 32
ROWS_IN_S = 10
BEGIN, END = 1, 2  # tokens around a picture


class SimulatedMediaEncoder:
    kinds: frozenset[Kind] = frozenset(("image", "audio"))
    sample_rate = 16_000
    batch_rows_max = 1024

    def __init__(self, *, encode_s: float = 0.0, sleep: Callable[[float], None] = time.sleep) -> None:
        self._encode_s = encode_s
        self._sleep = sleep
        self.batches: list[int] = []  # parts of each
        self.closed = False

    def prepare(self, decode: Callable[[], Medium]) -> tuple[Part, ...]:
        medium = decode()
        if isinstance(medium, Picture):
            if medium.width == 1:
                raise InvalidMediaError("a picture that is one pixel wide")
            rows = -(-medium.width // TILE_PIXELS) * -(-medium.height // TILE_PIXELS)
            native = b"" if medium.height == 1 else medium.rgb
            part = MediaPart(rows, True, native=native, bytes=len(native))
            return (array("i", [BEGIN]), part, array("i", [END]))
        rows = max(1, ROWS_IN_S * len(medium.samples) // medium.rate)
        native = medium.samples.tobytes()
        return (MediaPart(rows, False, native=native, bytes=len(native)),)

    def encode(self, parts: Sequence[MediaPart]) -> list[EncodedRows | StrettoError]:
        self._sleep(self._encode_s)
        self.batches.append(len(parts))
        return [
            EncodedRows(part.rows, bytes(4 * part.rows))
            if part.native
            else InvalidMediaError("a picture that is one pixel high")
            for part in parts
        ]

    def close(self) -> None:
        self.closed = True
