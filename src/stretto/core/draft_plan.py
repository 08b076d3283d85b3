"""The best way to spend rows on drafts in a tick: of all shapes, the one with the most tokens per second.

Knows prices (`cost`) and probabilities, which it is given. `speculation` says what is offered and what for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stretto.core.cost import CostModel
from stretto.core.draft_shapes import DraftShape, DraftShapes, Offer, drafts_above, worth_a_look
from stretto.core.slot import Slot

GAIN_MIN = 1.08  # tokens per second with drafts, over those without: less is noise


class Plan(NamedTuple):
    """The best way to spend rows on drafts in a tick."""

    rows: dict[int, int]  # drafts of each slot
    shape: DraftShape
    saved_s: float  # what its tokens take less than without drafts, the drafter's time included


class DraftPlans:
    """`equal_spans`: those of a pass; unequal ones are computed in several passes."""

    def __init__(self, cost: CostModel, *, equal_spans: bool) -> None:
        self._cost = cost
        self._equal_spans = equal_spans

    def best(
        self,
        decode: Sequence[Slot],
        offers: Sequence[Offer],
        spare: int,
        *,
        level_max: int,
        drafter_s: Callable[[DraftShape], float],
    ) -> Plan | None:
        """None: nothing is better than no drafts."""
        contexts = sum(slot.planned for slot in decode)
        alone_s = self._cost.verify_s(len(decode), contexts)
        if alone_s <= 0.0 or not offers:
            return None
        best, found, taken_s = GAIN_MIN * len(decode) / alone_s, None, 0.0
        shapes = DraftShapes(
            [(slot.index, slot.planned) for slot in decode],
            offers,
            spare,
            level_max=level_max if self._equal_spans else None,
            # where the last draft is worth less than its row, fewer drafts in the same passes are better
            apart_max=drafts_above(best * self._cost.row_s, max(offer.chance for offer in offers)),
        )
        for shape in shapes:
            rows = len(decode) + shape.extra
            seconds = self._cost.verify_s(rows, contexts + shape.contexts, passes=shape.passes)
            seconds += drafter_s(shape)
            rate = (len(decode) + shape.expected) / seconds
            if rate > best:
                best, found, taken_s = rate, shape, seconds
        if found is None:
            return None
        saved_s = (len(decode) + found.expected) * alone_s / len(decode) - taken_s
        return Plan(shapes.rows_of(found), found, saved_s)

    def passes(self, sequences: Sequence[int], counts: Sequence[int]) -> int:
        """Passes that the backend makes of decode spans with so many rows."""
        least = min(counts)
        if not self._equal_spans or least == max(counts):
            return 1
        longer = sorted(sequence for sequence, count in zip(sequences, counts, strict=True) if count > least)
        return 2 + sum(after - before > 1 for before, after in pairwise(longer))


def offers_of(able: Sequence[tuple[Slot, int]], acceptance: Callable[[Slot], float]) -> list[Offer]:
    return [
        Offer(slot.index, slot.sequence, most, chance, slot.planned)
        for slot, count in able
        for chance in (acceptance(slot),)
        if (most := worth_a_look(count, chance)) > 0
    ]
