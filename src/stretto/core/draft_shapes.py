"""The ways to spend rows on drafts in one tick, from which `speculation` takes the best.

Where a pass takes spans of any length, drafts are added one by one, the most likely first. Where the spans of
a pass have equal length (llama.cpp with a stream for each sequence), unequal ones are computed in several
passes, each of which reads all weights: either some slots get k drafts each, in further passes, or all slots
get k rows in one pass, padded where a slot has fewer proposals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

POINTS = 64  # numbers of drafts that are looked at, at most
CHANCE_MIN = 0.02  # of a draft that is looked at: rows for less never paid
UNLIMITED = 1 << 30


class Offer(NamedTuple):
    """Proposals of a slot: at most how many, and how likely each is accepted after those before it."""

    slot: int
    sequence: int
    most: int
    chance: float
    context: int


class DraftShape(NamedTuple):
    expected: float  # tokens beyond one for each decoding slot
    extra: int  # rows beyond these
    contexts: int  # sum of the context lengths of the extra rows
    passes: int
    depth: int  # most proposals of a slot
    drafts: int  # proposals of all of them
    slots: int  # with proposals


class DraftShapes:
    """`decode`: slot index and context length of all decoding slots.

    `level_max`: None where spans may differ, else the most draft rows that all of them have room for.
    `apart_max`: the most drafts of slots in further passes.
    """

    def __init__(
        self,
        decode: Sequence[tuple[int, int]],
        offers: Sequence[Offer],
        spare: int,
        *,
        level_max: int | None,
        apart_max: int = UNLIMITED,
    ) -> None:
        self._decode = decode
        self._apart_max = apart_max
        self._spare = spare
        self._level_max = level_max
        self._offers = sorted(offers, key=lambda offer: (-offer.chance, offer.slot))
        self._steps = _steps(offers, spare) if level_max is None else []

    def __iter__(self) -> Iterator[DraftShape]:
        return self._prefixes() if self._level_max is None else self._levels(self._level_max)

    def rows_of(self, shape: DraftShape) -> dict[int, int]:
        """Draft rows of each slot."""
        if self._level_max is None:
            return {slot: nth for _, slot, nth, _ in self._steps[: shape.extra]}
        if shape.passes == 1:
            return dict.fromkeys((slot for slot, _ in self._decode), shape.depth)
        return {offer.slot: shape.depth for offer in self._able(shape.depth)[: shape.slots]}

    def _prefixes(self) -> Iterator[DraftShape]:
        stride = max(1, len(self._steps) // POINTS)
        expected, contexts, depth = 0.0, 0, 0
        slots: set[int] = set()
        for count, (chance, slot, nth, context) in enumerate(self._steps, 1):
            expected -= chance
            contexts += context
            depth = max(depth, nth)
            slots.add(slot)
            if count % stride == 0 or count == len(self._steps):
                yield DraftShape(expected, count, contexts, 1, depth, count, len(slots))

    def _levels(self, level_max: int) -> Iterator[DraftShape]:
        total, offers = len(self._decode), self._offers
        contexts_all = sum(context for _, context in self._decode)
        chances, tokens = [1.0] * len(offers), [0.0] * len(offers)  # of the last draft, of all up to it
        drafts = 0
        for depth in range(1, max((offer.most for offer in offers), default=0) + 1):
            for at, offer in enumerate(offers):
                if offer.most >= depth:
                    chances[at] *= offer.chance
                    tokens[at] += chances[at]
                    drafts += 1
            if depth <= self._apart_max:
                yield from self._some(depth, tokens)
            if depth <= level_max and depth * total <= self._spare:
                yield DraftShape(
                    sum(tokens), depth * total, depth * contexts_all, 1, depth, drafts, len(offers)
                )

    def _some(self, depth: int, tokens: Sequence[float]) -> Iterator[DraftShape]:
        """`depth` drafts for the best slots, fewer than all: runs of consecutive sequences share a pass."""
        expected, contexts, extra, runs, count = 0.0, 0, 0, 0, 0
        chosen: set[int] = set()
        for offer, gained in zip(self._offers, tokens, strict=True):
            if offer.most < depth:
                continue
            count += 1
            extra += depth
            if count == len(self._decode) or extra > self._spare:
                return
            at = offer.sequence
            runs += 1 - (at - 1 in chosen) - (at + 1 in chosen)
            chosen.add(at)
            expected += gained
            contexts += depth * offer.context
            yield DraftShape(expected, extra, contexts, 1 + runs, depth, extra, count)

    def _able(self, depth: int) -> list[Offer]:
        return [offer for offer in self._offers if offer.most >= depth]


def worth_a_look(most: int, chance: float) -> int:
    """Of so many drafts, those that are not hardly ever accepted."""
    return min(most, drafts_above(CHANCE_MIN, chance))


def drafts_above(least: float, chance: float) -> int:
    """How many drafts in a row are accepted with a probability above `least`."""
    if chance <= least:
        return 0
    return int(log(least) / log(chance)) if least > 0.0 and chance < 1.0 else UNLIMITED


def _steps(offers: Sequence[Offer], spare: int) -> list[tuple[float, int, int, int]]:
    """Drafts, the most likely first: minus its probability, slot, how many of its slot, context."""
    return sorted(
        (-(offer.chance**nth), offer.slot, nth, offer.context)
        for offer in offers
        for nth in range(1, offer.most + 1)
    )[:spare]
