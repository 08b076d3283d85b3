"""Shares a tick's prefill rows among prompts: the shortest first.

Short prompts overtake long ones, which keeps most first tokens early. The oldest prompt cannot starve: every
fourth tick half of the rows go to it first (a single chunk multiple is not halved), so it gets rows after
three ticks at most. A prompt that needs only slightly more rows than are left (`NEARLY`) is completed in this
tick.

Higher priorities come first regardless of age. As at admission, every fourth time the oldest prompt of any
priority leads, so a steady flow of urgent prompts cannot starve the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.capabilities import Parts
from stretto.core.cost import CostModel
from stretto.core.fairness import AGEING_PERIOD
from stretto.core.slot import Slot

NEARLY = 1.1  # times the room: rows that may be given to end a prompt


class ChunkSharer:
    def __init__(self, cost: CostModel, *, quantum: int, chunk_max: int) -> None:
        self._cost = cost
        self._quantum = quantum
        self._chunk_max = chunk_max
        self._stood = 0  # ticks since the oldest of its class led
        self._passed_over = 0

    def share(
        self,
        prompts: Sequence[Slot],
        *,
        allowance_s: float,
        rows: int,
        least: int = 0,
        enough: int | None = None,
    ) -> list[tuple[Slot, int]]:
        """Rows of each prompt that gets any in this tick, in the order in which they were granted.

        `least`: rows to grant in total, however long they take. Completed prompts wait for the whole tick
        to be computed, so a part that does not complete its prompt gets only up to `enough` rows in all.
        """
        if not prompts or rows <= 0:
            return []
        oldest = self._leader(prompts)
        order = sorted(prompts, key=_shortest)
        top = order[0].priority
        rivals = oldest.priority == top and sum(slot.priority == top for slot in prompts) > 1
        leads = not rivals or self._stood + 1 == AGEING_PERIOD
        context = (oldest if leads else order[0]).planned
        left = min(self._cost.largest_chunk(context, allowance_s, least=least), rows)
        enough = left if enough is None else enough
        shares: dict[int, int] = {}
        if leads:
            half = min(left, max(left // 2, self._quantum)) if len(order) > 1 else left
            left -= self._give(shares, oldest, half, least=1)
        self._give_shortest(shares, order, left, enough, rows=rows, context=context)
        if not shares:
            self._give(shares, oldest, left, least=1)
        if oldest.priority == top:
            self._stood = 0 if leads else self._stood + 1  # a new prompt leads first
        return [(slot, shares[slot.index]) for slot in order if shares.get(slot.index)]

    def _leader(self, prompts: Sequence[Slot]) -> Slot:
        """The oldest of the most urgent ones, and regularly the oldest of all."""
        oldest = min(prompts, key=lambda slot: slot.arrival)
        first = min(prompts, key=_rank)
        if first.priority == oldest.priority:
            self._passed_over = 0
            return oldest
        self._passed_over = (self._passed_over + 1) % AGEING_PERIOD
        return first if self._passed_over else oldest

    def _give_shortest(
        self,
        shares: dict[int, int],
        order: Sequence[Slot],
        left: int,
        enough: int,
        *,
        rows: int,
        context: int,
    ) -> None:
        """`left` counts rows at context length `context`; at a greater length there are fewer."""
        if self._nearly_done(shares, order[0], left, rows):
            shares[order[0].index] = order[0].prefill_due
            return
        done = False
        for slot in order:
            if left <= 0:
                break
            have = shares.get(slot.index, 0)
            dearer = max(1.0, self._cost.dearer(slot.planned, context))
            room = int(left / dearer)
            if done and have + room < slot.prefill_due:
                room = min(room, enough - sum(shares.values()))
            if room > 0:
                left -= round(self._give(shares, slot, room) * dearer)
            done = done or shares.get(slot.index) == slot.prefill_due

    def _nearly_done(self, shares: dict[int, int], slot: Slot, left: int, rows: int) -> bool:
        """Whether slightly more rows than are left complete the prompt; partial chunks cost their share."""
        due, room = slot.prefill_due, sum(shares.values()) + left
        missing = due - shares.get(slot.index, 0) - left
        if self._cost.parts is not Parts.EVEN or any(mark > slot.planned for mark in slot.checkpoint_at):
            return False
        known = due <= self._chunk_max and self._cost.trusts(due)
        return known and 0 < missing <= min(NEARLY * room, rows) - room

    def _give(self, shares: dict[int, int], slot: Slot, count: int, *, least: int = 0) -> int:
        """Grant up to `count` more rows: to the end of the prompt, to a checkpoint, or a chunk multiple.

        With `Parts.WHOLE` the remainder of a prompt gets a tick of its own. Returns the rows to account for.
        """
        have = shares.get(slot.index, 0)
        due = next(
            (mark - slot.planned for mark in slot.checkpoint_at if mark > slot.planned), slot.prefill_due
        )
        total = min(have + count, due, self._chunk_max)
        if total < due or (total > self._quantum and self._cost.parts is Parts.WHOLE):
            total = max(total - total % self._quantum, min(least, total))
        while total > have + 1 and total < self._quantum and self._is_dear(total, slot.planned):
            total = (total + 1) // 2
        total = max(total, have)
        billed = self._cost.billed(total) - self._cost.billed(have)
        if billed > count and not least:
            return 0
        shares[slot.index] = total
        return billed

    def _is_dear(self, count: int, context: int) -> bool:
        """Whether a partial chunk costs more than a whole multiple; it is then computed in two parts."""
        if self._cost.parts is not Parts.DEAR:
            return False
        return self._cost.chunk_s(count, context) > self._cost.chunk_s(self._quantum, context)


def _rank(slot: Slot) -> tuple[int, int]:
    return (slot.priority, slot.arrival)


def _shortest(slot: Slot) -> tuple[int, int, int]:
    job = slot.job
    assert job is not None
    return (job.priority, slot.prefill_due, job.arrival)
