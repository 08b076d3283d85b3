"""Pages of a draft model's KV: which slot holds which. Knows numbers of pages, neither tokens nor memory.

A slot whose request has ended keeps its pages, because its next request may begin with the same text; they
are taken back, the longest unused first, when another slot needs pages. A running request is never evicted:
where the pages are too few, later requests go without drafts.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.core.tick import TableUpdate


class DraftPages:
    """`evicted`: is called with a slot that has lost its pages."""

    def __init__(self, *, pages: int, page_tokens: int, evicted: Callable[[int], None]) -> None:
        self._page_tokens = page_tokens
        self._evicted = evicted
        self._free = list(range(pages - 1, -1, -1))
        self._held: dict[int, list[int]] = {}
        self._idle: dict[int, None] = {}  # slots without a request that hold pages, the longest idle first
        self._updates: list[TableUpdate] = []

    def reserve(self, slot: int, tokens: int) -> bool:
        """Gives a slot pages for so many tokens, and takes back what it has beyond them."""
        self._idle.pop(slot, None)
        held = self._held.setdefault(slot, [])
        more = -(-tokens // self._page_tokens) - len(held)
        if more > 0:
            if not self._evict(more):
                return False
            gained = tuple(self._free.pop() for _ in range(more))
            self._updates.append(TableUpdate(slot, len(held), gained))
            held.extend(gained)
        elif more < 0:
            self._updates.append(TableUpdate(slot, len(held) + more, ()))
            self._free.extend(held[more:])
            del held[more:]
        return True

    def release(self, slot: int) -> None:
        """Its request has ended."""
        if self._held.get(slot):
            self._idle.pop(slot, None)
            self._idle[slot] = None

    def take_updates(self) -> list[TableUpdate]:
        """Changes of the block tables since the last call."""
        taken, self._updates = self._updates, []
        return taken

    def _evict(self, pages: int) -> bool:
        """Frees pages of idle slots until there are so many, if there can be."""
        idle = sum(len(self._held[slot]) for slot in self._idle)
        if len(self._free) + idle < pages:
            return False
        while len(self._free) < pages:
            slot = next(iter(self._idle))
            del self._idle[slot]
            self._free.extend(self._held.pop(slot))
            self._evicted(slot)
        return True
