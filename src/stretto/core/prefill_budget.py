"""Shares a tick's time for prompts. One unit, seconds, and one rule:

Whole prompts may fill the tick up to `whole_s`, part of a prompt only up to `part_s`; shortest first; every
fourth tick half of it goes to the oldest first.

The first prompt of a tick always gets rows, at least one chunk multiple, and as a part up to `whole_s`:
`part_s` is for parts beside other prompts. Short prompts overtake long ones, which keeps most first tokens
early, and the oldest prompt gets rows after three ticks at most. Higher priorities come first regardless of
age. As at admission, every fourth time the oldest prompt of any priority leads, so a steady flow of urgent
prompts cannot starve the others. Rows are only limits here: of a batch, of a chunk, of what was measured. A
picture that must be computed whole gets all its rows or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.core.cost import CostModel
from stretto.core.fairness import AGEING_PERIOD
from stretto.core.limits import TARGET_S
from stretto.core.media import is_whole, place_of, rows_alike
from stretto.core.slot import Slot

DECODE_TICKS = 4.0  # auto: the target in decode-only ticks; prompts get three quarters of a slow machine
NEAR_THE_END = 0.75  # of a prompt: where the time of an efficient chunk is taken
IDLE_TARGETS = 4.0  # without decode rows a tick may take this many targets, …
IDLE_S = 0.3  # … but no more than this, or one target: newcomers get in soon
TOGETHER = 2  # efficient chunks for several prompts in a tick: with less, each waits for many decode passes
TOGETHER_S = 0.31  # … but no more than this, …
TOGETHER_TICKS = 6.0  # … or this many decode-only ticks: completed prompts wait for the other rows
UNHURRIED_AFTER_TICKS = 8.0  # auto: decode-only ticks that the encoder of a lone prompt's media took …
UNHURRIED_TICKS = 0.4  # … from which on it gets this much of one, unless it takes longer than its encoder
PART_TICKS = 3.0  # decode-only ticks beside which a decode pass is short: more time for parts saves nothing


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds of a tick for prompts: for whole ones, and for parts beside them.

    `multiple`: of rows, for parts; 0: the chunk multiple. `media`: parts are rows of media.
    """

    whole_s: float
    part_s: float
    multiple: int = 0
    media: bool = False


def budget_of(
    cost: CostModel,
    prompts: Sequence[Slot],
    *,
    decode_s: float,
    target_s: float | None,
    mixed_batches: bool = True,
) -> Budget:
    """The budget of a tick beside decode rows that take `decode_s`.

    Prompts always get at least half the machine; a fixed target would starve them. With no target (auto) a
    tick may also take as long as the last efficient chunk of the oldest prompt must: shorter ones before
    would not make the longest gap shorter, only the prompt later. Where ticks alternate, a completed prompt
    waits for the whole tick, and parts beside it only have the time in which they save decode passes. A lone
    prompt whose media took long to be encoded leaves streams more.
    """
    oldest = min(prompts, key=lambda slot: slot.arrival)
    least_s = decode_s
    if target_s is None and decode_s and len(prompts) == 1:
        unhurried_s = _unhurried_s(cost, oldest, decode_s)
        if unhurried_s is not None:
            if place_of(oldest.media, oldest.planned) is not None:
                return Budget(unhurried_s, unhurried_s, cost.media_chunk_least, media=True)
            return Budget(unhurried_s, unhurried_s, max(cost.chunk_least, cost.chunk_multiple // 2))
    if target_s is None:
        target_s = max(TARGET_S, DECODE_TICKS * decode_s)
        least_s = cost.chunk_s(cost.efficient_chunk, int(len(oldest.known) * NEAR_THE_END))
        if len(prompts) > 1:
            together_s = cost.chunk_s(TOGETHER * cost.efficient_chunk, oldest.planned)
            least_s = max(least_s, min(together_s, max(TOGETHER_S, TOGETHER_TICKS * decode_s)))
    idle_s = max(target_s, min(IDLE_TARGETS * target_s, IDLE_S))
    whole_s = max(target_s - decode_s if decode_s else idle_s, least_s)
    return Budget(whole_s, whole_s if mixed_batches else min(whole_s, PART_TICKS * decode_s))


def _unhurried_s(cost: CostModel, slot: Slot, decode_s: float) -> float | None:
    """Time in a tick for a prompt that is short beside its encoder's work; None: it has no time to lose.

    After the wait for the encoder a few more ticks go unnoticed, and streams have shared the processors with
    the encoder before. Time in the encoder's queue does not count.
    """
    job = slot.job
    assert job is not None
    if not slot.media or job.encoding_s <= 0.0:
        return None
    chunk = cost.efficient_chunk
    rows = len(slot.known) - job.cached
    needed_s = rows / chunk * cost.chunk_s(chunk, job.cached + rows // 2)
    least_s = max(needed_s, UNHURRIED_AFTER_TICKS * decode_s)
    return UNHURRIED_TICKS * decode_s if job.encoding_s >= least_s else None


class PrefillSharer:
    def __init__(self, cost: CostModel, *, chunk_max: int) -> None:
        self._cost = cost
        self._chunk_max = chunk_max
        self._stood = 0  # ticks since the oldest of its class led
        self._passed_over = 0

    def share(self, prompts: Sequence[Slot], budget: Budget, *, rows: int) -> list[tuple[Slot, int]]:
        """Rows of each prompt that gets any in this tick, the shortest first."""
        if not prompts or rows <= 0:
            return []
        oldest = self._leader(prompts)
        order = sorted(prompts, key=_shortest)
        top = order[0].priority
        rivals = oldest.priority == top and sum(slot.priority == top for slot in prompts) > 1
        leads = not rivals or self._stood + 1 == AGEING_PERIOD
        shares = _Shares(self._cost, rows=min(rows, self._cost.rows_trusted), chunk_max=self._chunk_max)
        if leads and len(order) > 1:
            shares.grant_half(oldest, budget)
        for slot in order:
            if not shares.grant(slot, budget):
                break
        if oldest.priority == top:
            self._stood = 0 if leads else self._stood + 1  # a new prompt leads first
        return [(slot, shares.rows_of[slot.index]) for slot in order if slot.index in shares.rows_of]

    def _leader(self, prompts: Sequence[Slot]) -> Slot:
        """The oldest of the most urgent ones, and regularly the oldest of all."""
        oldest = min(prompts, key=lambda slot: slot.arrival)
        first = min(prompts, key=_rank)
        if first.priority == oldest.priority:
            self._passed_over = 0
            return oldest
        self._passed_over = (self._passed_over + 1) % AGEING_PERIOD
        return first if self._passed_over else oldest


class _Shares:
    """What the prompts of one tick have got so far."""

    def __init__(self, cost: CostModel, *, rows: int, chunk_max: int) -> None:
        self.rows_of: dict[int, int] = {}  # by slot index
        self._cost = cost
        self._chunk_max = chunk_max
        self._rows_left = rows
        self._spent_s = 0.0
        self._has_whole = False

    def grant_half(self, slot: Slot, budget: Budget) -> None:
        """Half of the tick; one chunk multiple is not halved."""
        half = max(self._rows_left // 2, min(self._cost.chunk_multiple, self._rows_left))
        kept, self._rows_left = self._rows_left - half, half
        self.grant(slot, Budget(budget.whole_s / 2, budget.part_s / 2, budget.multiple))
        self._rows_left += kept

    def grant(self, slot: Slot, budget: Budget) -> bool:
        """More rows: to the end of the prompt, to a checkpoint, or a multiple. False: the tick is full."""
        cost, context = self._cost, slot.planned
        have = self.rows_of.get(slot.index, 0)
        others_s = self._spent_s - cost.chunk_s(have, context)
        end = next((mark - context for mark in slot.checkpoint_at if mark > context), slot.prefill_due)
        if slot.media:
            end = rows_alike(slot.media, context, context + end)
            if is_whole(slot.media, context):
                return self._grant_whole(slot, end, budget)
        most = min(end, self._chunk_max, have + self._rows_left)
        left_s = budget.whole_s - others_s
        part_left_s = left_s if others_s <= 0.0 else budget.part_s - others_s
        full = False
        total = most
        if most < end or cost.chunk_s(most, context) > (left_s if end == slot.prefill_due else part_left_s):
            multiple = budget.multiple or cost.chunk_multiple
            total = (
                cost.media_rows_within(part_left_s, context, rows_max=most)
                if budget.media
                else cost.rows_within(part_left_s, context, rows_max=most, multiple=multiple)
            )
            full = total + multiple <= most  # by time, not by rows
            if not self.rows_of:
                total = max(total, self._least(most, context, multiple))
            if budget.multiple and most == end == total + 1:
                total = end  # a last row alone would be a decode row with a call of its own
        if total > have:
            self.rows_of[slot.index] = total
            self._rows_left -= total - have
            self._spent_s = others_s + cost.chunk_s(total, context)
        return not full and self._rows_left > 0

    def _grant_whole(self, slot: Slot, rows: int, budget: Budget) -> bool:
        """All rows of a picture or none, and one such picture a tick: they have a call of their own."""
        seconds = self._cost.chunk_s(rows, slot.planned)
        in_time = not self.rows_of or self._spent_s + seconds <= budget.whole_s
        if in_time and not self._has_whole:
            self.rows_of[slot.index] = rows
            self._spent_s += seconds
            self._has_whole = True
        return self._rows_left > 0

    def _least(self, rows: int, context: int, multiple: int) -> int:
        """A multiple, however long it takes; fewer rows that would take longer than one are halved."""
        rows, multiple_s = min(rows, multiple), self._cost.chunk_s(multiple, context)
        while rows > 1 and self._cost.chunk_s(rows, context) > multiple_s:
            rows = (rows + 1) // 2
        return rows


def _rank(slot: Slot) -> tuple[int, int]:
    return (slot.priority, slot.arrival)


def _shortest(slot: Slot) -> tuple[int, int, int]:
    job = slot.job
    assert job is not None
    return (job.priority, slot.prefill_due, job.arrival)
