"""Pictures for simulations: which there are, and an encoder that takes its time.

Few pictures, so that conversations share them; those with an even number are computed whole, and of the
others every second is a grid (M-RoPE). The encoder works on one at a time, encodes equal ones once, and fails
at times.
"""

from __future__ import annotations

import heapq
import random
import zlib
from dataclasses import dataclass

from stretto.core.media import MEDIA_ROW, MediaRows
from stretto.core.request import Request


@dataclass(frozen=True, slots=True)
class MediaTraffic:
    """How often messages have pictures, of how many there are, and what the encoder does with them."""

    share: float = 0.0
    pictures: int = 1
    encode_s: float = 0.0
    failure: float = 0.0


NO_MEDIA = MediaTraffic()


def picture(number: int, start: int, rows_max: int) -> MediaRows:
    """Picture `number` at this position of a prompt; it always has the same rows."""
    digest = f"picture {number}".encode()
    whole = number % 2 == 0
    rows = 1 + zlib.crc32(digest) % (rows_max if whole else 2 * rows_max)
    return MediaRows(start, rows, digest, whole, grid_width=rows if number % 4 == 3 else 0)


def tokens_of(item: MediaRows) -> list[int]:
    return [MEDIA_ROW] * item.rows


class SimulatedEncoder:
    def __init__(self, seed: str, traffic: MediaTraffic) -> None:
        self._random = random.Random(seed)
        self._traffic = traffic
        self._free_s = 0.0  # when it has done what it was given
        self._ready_s: dict[bytes, float] = {}
        self._due: list[tuple[float, int, Request]] = []
        self._number = 0
        self.encoded: set[bytes] = set()

    def take(self, request: Request, now: float) -> None:
        due_s = now
        for item in request.media:
            if item.digest not in self._ready_s:
                self._free_s = max(self._free_s, now) + self._random.random() * self._traffic.encode_s
                self._ready_s[item.digest] = self._free_s
            due_s = max(due_s, self._ready_s[item.digest])
        self._number += 1
        heapq.heappush(self._due, (due_s, self._number, request))

    @property
    def next_s(self) -> float | None:
        """When it is done with the next request."""
        return self._due[0][0] if self._due else None

    def finished(self, now: float) -> list[tuple[Request, bool]]:
        """Requests whose media are done by now, and whether they could be encoded."""
        done: list[tuple[Request, bool]] = []
        while self._due and self._due[0][0] <= now:
            _, _, request = heapq.heappop(self._due)
            succeeds = self._random.random() >= self._traffic.failure
            if succeeds:
                self.encoded.update(item.digest for item in request.media)
            done.append((request, succeeds))
        return done
