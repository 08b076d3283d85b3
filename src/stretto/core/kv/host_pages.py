"""Pages whose content is in host memory: found by digest, the least recently used dropped first.

A page that is evicted from the pool is saved here before it is reused, and loaded into another page when a
prompt asks for it. Knows digests and places, never memory: a place in host memory is a blob's number, which
the backend gets with SAVE_PAGES and LOAD_PAGES. An entry can be found once its save has succeeded.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from stretto.core.kv.page_index import Digest, Page, next_digest


class HostPage:
    __slots__ = ("digest", "pins", "ready", "tokens")

    def __init__(self, digest: Digest, tokens: array[int]) -> None:
        self.digest = digest
        self.tokens = tokens
        self.ready = False
        self.pins = 0  # loads that have not been settled


class HostPages:
    """`count` places. `saves_max`: pages saved in one tick at most; the others are forgotten."""

    def __init__(self, count: int, page_tokens: int, saves_max: int) -> None:
        self._count, self._size, self._saves_max = count, page_tokens, saves_max
        self._free = list(range(count - 1, -1, -1))
        self._pages: OrderedDict[int, HostPage] = OrderedDict()  # by blob, least recently used first
        self._known: dict[Digest, int] = {}
        self._saves = 0

    def __len__(self) -> int:
        return len(self._pages)

    def begin_plan(self) -> None:
        self._saves = 0

    def save(self, page: Page) -> int | None:
        """The blob to save a page to; None: it is there already, or there is no time or space."""
        assert page.digest is not None
        if (blob := self._known.get(page.digest)) is not None:
            self._pages.move_to_end(blob)
            return None
        if self._saves >= self._saves_max or (blob := self._place()) is None:
            return None
        self._saves += 1
        self._pages[blob] = HostPage(page.digest, page.tokens)
        self._known[page.digest] = blob
        return blob

    def _place(self) -> int | None:
        if self._free:
            return self._free.pop()
        for blob, page in self._pages.items():
            if page.ready and not page.pins:
                self._drop(blob)
                return blob
        return None

    def _drop(self, blob: int) -> None:
        del self._known[self._pages.pop(blob).digest]

    def saved(self, blob: int, *, ok: bool) -> None:
        if ok:
            self._pages[blob].ready = True
        else:
            self._drop(blob)
            self._free.append(blob)

    def chain(self, tokens: array[int], digests: list[Digest], held: int) -> list[int]:
        """Blobs of the pages with which these tokens go on after the first `held` pages."""
        blobs: list[int] = []
        for start in range(held * self._size, len(tokens) - self._size + 1, self._size):
            part = tokens[start : start + self._size]
            at = held + len(blobs) + 1
            if at == len(digests):
                digests.append(next_digest(digests[-1], part.tobytes()))
            blob = self._known.get(digests[at])
            if blob is None or not self._pages[blob].ready or self._pages[blob].tokens != part:
                break
            blobs.append(blob)
        return blobs

    def pin(self, blobs: list[int]) -> None:
        """They are needed until their loads are settled. The first page of a prompt stays longest."""
        for blob in reversed(blobs):
            self._pages[blob].pins += 1
            self._pages.move_to_end(blob)

    def unpin(self, blob: int) -> None:
        self._pages[blob].pins -= 1

    def check(self, loads: int) -> None:
        """`loads`: how many are planned or in flight."""
        assert sorted([*self._free, *self._pages]) == list(range(self._count)), (
            "a place in host memory is lost"
        )
        assert {page.digest: blob for blob, page in self._pages.items()} == self._known, "host pages are lost"
        assert sum(page.pins for page in self._pages.values()) == loads, "loads and pins do not match"
