"""How a tick's room for prompts is shared out.

Every second tick half of the chunk is for the most senior prompt (a single quantum is not halved); all the
rest goes to the shortest first. Short prompts pass, which is what keeps most first tokens early; the long one
still gets a quarter of the room and stands still for one tick at most.

More urgent prompts come first, whoever is senior; but as at admission every fourth time is for the most
senior of any class, so that a stream of urgent prompts holds nobody up for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.capabilities import Parts
from stretto.core.cost import CostModel
from stretto.core.slot import Slot

SENIOR_TURN = 4  # in so many ticks the most senior prompt leads once, whatever its class


class ChunkSharer:
    def __init__(self, cost: CostModel, *, quantum: int, chunk_max: int) -> None:
        self._cost = cost
        self._quantum = quantum
        self._chunk_max = chunk_max
        self._others_turn = True
        self._passed_over = 0

    def share(
        self, prompts: Sequence[Slot], *, allowance_s: float, rows: int, least: int | None = None
    ) -> list[tuple[Slot, int]]:
        """Rows for each prompt that gets any this tick, in the order in which they were given.

        `least`: rows to give out in all, whatever they take. Those who are done wait for the others' rows:
        no more than these are filled up with a part of a prompt that is not done with it.
        """
        if not prompts or rows <= 0:
            return []
        senior = self._leader(prompts)
        order = sorted(prompts, key=_shortest)
        top = _level(order[0])
        rivals = _level(senior) == top and sum(_level(slot) == top for slot in prompts) > 1
        left = min(self._cost.largest_chunk(senior.planned, allowance_s, least=least or 0), rows)
        enough = left if least is None else least
        shares: dict[int, int] = {}
        if not (rivals and self._others_turn):
            half = min(left, max(left // 2, self._quantum)) if len(order) > 1 else left
            left -= self._give(shares, senior, half, least=1)
        self._give_shortest(shares, order, left, enough)
        if not shares:
            self._give(shares, senior, left, least=1)
        if _level(senior) == top:
            self._others_turn = not rivals or not self._others_turn  # who comes new has the first turn
        return [(slot, shares[slot.index]) for slot in order if shares.get(slot.index)]

    def _leader(self, prompts: Sequence[Slot]) -> Slot:
        """The most senior of the most urgent ones, and regularly the most senior of all."""
        senior = min(prompts, key=_seniority)
        first = min(prompts, key=_rank)
        if _level(first) == _level(senior):
            self._passed_over = 0
            return senior
        self._passed_over = (self._passed_over + 1) % SENIOR_TURN
        return first if self._passed_over else senior

    def _give_shortest(self, shares: dict[int, int], order: Sequence[Slot], left: int, enough: int) -> None:
        done = False
        for slot in order:
            have = shares.get(slot.index, 0)
            part = done and have + left < slot.rows_due
            room = min(left, enough - sum(shares.values())) if part else left
            if room > 0:
                left -= self._give(shares, slot, room)
            done = done or shares.get(slot.index) == slot.rows_due

    def _give(self, shares: dict[int, int], slot: Slot, count: int, *, least: int = 0) -> int:
        """Up to `count` more rows: to the end of the prompt, to a mark, or a multiple of the quantum.

        Where quanta are whole, what is left over has a tick of its own. Answers how many rows it counts for.
        """
        have = shares.get(slot.index, 0)
        due = next((mark - slot.planned for mark in slot.marks if mark > slot.planned), slot.rows_due)
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
        """Behind a kernel's cliff a part of a quantum can cost more than all of it: then in two parts."""
        if self._cost.parts is not Parts.DEAR:
            return False
        return self._cost.chunk_s(count, context) > self._cost.chunk_s(self._quantum, context)


def _seniority(slot: Slot) -> int:
    return slot.job.seniority if slot.job is not None else 0


def _level(slot: Slot) -> int:
    return slot.job.level if slot.job is not None else 0


def _rank(slot: Slot) -> tuple[int, int]:
    return (_level(slot), _seniority(slot))


def _shortest(slot: Slot) -> tuple[int, int, int]:
    job = slot.job
    assert job is not None
    return (job.level, slot.rows_due, job.seniority)
