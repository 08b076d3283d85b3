"""Which replica probably holds which blocks, as a router remembers it; bounded, least recently used first.

A block is remembered where a request was sent, corrected by what replicas report. One walk over a prompt's
blocks finds what every replica holds: each block has a bit mask of its holders.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from stretto.cluster.policy.reports import PrefixDigest

BLOCKS_MAX = 16_384  # remembered for one replica


class PrefixMap:
    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._bits: dict[str, int] = {}  # replica -> its bit
        self._names: dict[int, str] = {}
        self._held: dict[str, OrderedDict[int, float]] = {}  # block -> when it is computed; oldest first
        self._limits: dict[str, int] = {}
        self._holders: dict[int, int] = {}  # block -> mask of replicas

    def __len__(self) -> int:
        """Blocks remembered for all replicas together."""
        return sum(len(held) for held in self._held.values())

    def count(self, replica: str) -> int:
        return len(self._held.get(replica, ()))

    def add(self, replica: str) -> None:
        if replica in self._bits:
            return
        bit = next(b for b in range(len(self._bits) + 1) if b not in self._names)
        self._bits[replica], self._names[bit] = bit, replica
        self._held[replica], self._limits[replica] = OrderedDict(), self._blocks_max

    def remove(self, replica: str) -> None:
        if replica in self._bits:
            for block in list(self._held[replica]):
                self._drop(replica, block)
            del self._held[replica], self._limits[replica], self._names[self._bits.pop(replica)]

    def limit(self, replica: str, blocks: int) -> None:
        """The replica cannot hold more than so many blocks: neither need this map."""
        self._limits[replica] = max(1, min(blocks, self._blocks_max))
        self._shrink(replica)

    def remember(self, replica: str, blocks: Sequence[int], computed_s: float) -> None:
        """The replica holds these blocks from about `computed_s` on. The first ones are forgotten last."""
        held, mask = self._held[replica], 1 << self._bits[replica]
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
            else:
                self._holders[block] = self._holders.get(block, 0) | mask
            held[block] = computed_s
        self._shrink(replica)

    def matched(self, blocks: Sequence[int]) -> dict[str, int]:
        """How many of a prompt's first blocks each replica holds; those that hold none are left out."""
        found: dict[str, int] = {}
        alive = self._holders.get(blocks[0], 0) if blocks else 0
        depth = 1
        while alive and depth < len(blocks):
            further = alive & self._holders.get(blocks[depth], 0)
            if further != alive:
                for name in self._of(alive & ~further):
                    found[name] = depth
            alive = further
            depth += 1
        for name in self._of(alive):
            found[name] = depth
        return found

    def correct(self, replica: str, digest: PrefixDigest, before_s: float) -> None:
        """Add what the replica lists; forget the rest if the list is complete.

        Blocks that were to be computed after `before_s` stay: the digest may be older than they are.
        """
        if replica not in self._held:
            return
        self.remember(replica, digest.blocks, before_s)
        if digest.complete:
            listed = frozenset(digest.blocks)
            held = self._held[replica]
            gone = [b for b, computed_s in held.items() if b not in listed and computed_s <= before_s]
            for block in gone:
                self._drop(replica, block)

    def _drop(self, replica: str, block: int) -> None:
        del self._held[replica][block]
        self._unmark(replica, block)

    def _unmark(self, replica: str, block: int) -> None:
        left = self._holders[block] & ~(1 << self._bits[replica])
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]

    def _shrink(self, replica: str) -> None:
        held = self._held[replica]
        while len(held) > self._limits[replica]:
            block, _ = held.popitem(last=False)
            self._unmark(replica, block)

    def _of(self, mask: int) -> Iterator[str]:
        while mask:
            low = mask & -mask
            yield self._names[low.bit_length() - 1]
            mask ^= low
