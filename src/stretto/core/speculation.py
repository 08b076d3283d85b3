"""How many draft tokens each slot verifies in a tick: as many as raise the tokens per second.

A draft is a row of the pass whether or not it is accepted. If the drafts of a slot are accepted with
probability p each, its n-th draft yields a token with probability p to the n. Of the ways to spend rows
(`draft_shapes`), the one with the most expected tokens per predicted second is taken: many drafts for one
stream whose drafts are good, none beside fifteen others, whose rows already fill the pass.

Two decisions in each tick: which of the proposals at hand are verified (`choose`), and which slots make
proposals for the next tick (`wanted`), because looking for drafts takes time as well. Acceptance is learned
for each request and drafter, starting from that of all requests. Where no draft is worth its row, proposals
are made now and then and compared with what plain decoding gives: that costs no row. Measured losses have the
last word (`draft_gain`).

Where ticks are planned ahead, proposals need the tokens of the tick in flight: the next one waits for them,
and the device does nothing meanwhile. What that takes is measured, and counts as time of the drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import cycle, islice, pairwise

from stretto.core.cost import CostModel
from stretto.core.draft_gain import DraftGain
from stretto.core.draft_shapes import DraftShapes, Offer
from stretto.core.least_squares import SOONEST_S, LeastSquares
from stretto.core.slot import DraftRecord, Slot

GAIN_MIN = 1.08  # tokens per second with drafts, over those without: less is noise
PRIOR = 0.7  # acceptance, until something was verified
PRIOR_WEIGHT = 4.0  # verified drafts that the estimate of all requests counts as, in that of one
MEMORY = 0.9  # what a verification leaves of the weight of earlier ones, for a request
MEMORY_ALL = 0.99  # … and for all of them
TRIALS_MIN = 8  # verifications before predictions decide
ASKED_MAX = 16  # ticks in a row that ask for a trial; then as rarely as for comparisons
TRIAL_TOKENS = 2  # drafts of one slot that are verified until then
TRIAL_SHARE = 8  # of so many slots one more is tried in the same tick
COMPARE_SLOTS = 16  # whose proposals are compared at a time
COMPARE_EVERY = 6  # ticks, at least, between proposals that are only compared
COMPARE_AHEAD = 16  # … where ticks are planned ahead and must wait for them
COMPARE_SHARE = 0.002  # of the time of ticks that the drafter may spend on those; deciding takes as long
WAIT_WEIGHT, WAIT_OUTLIER = 0.1, 3.0  # of a new measurement, and the most that one counts for
WANTED_FOR = 8  # ticks for which the slots that make proposals stay the same, if the batch does
QUIET_FOR = 16  # ticks for which slots are not asked, if none of their proposals are wanted
QUIET_SHARE = 4  # … or a tick for each of so many slots: looking takes longer then


class DraftPlanner:
    def __init__(self, cost: CostModel, *, equal_spans: bool = False) -> None:
        self.gain = DraftGain(cost)
        self._cost = cost
        self._equal_spans = equal_spans
        self._all = DraftRecord()
        self._drafter_s = LeastSquares(3)  # depth, drafts, slots -> seconds
        self._wait_s = 0.0  # the device's pause before a tick that waits for the tokens of the one before
        self._ahead = False  # whether ticks wait at all
        self._idle_ticks = 0  # without proposals
        self._asked = 0  # ticks that asked for trials since the last one: text without repetitions has none
        self._compared = 0  # slots that made proposals to be compared
        self._wanted: dict[int, int] = {}
        self._wanted_of: tuple[object, ...] = ()
        self._wanted_for = 0
        self._quiet = 0, 0  # a number of slots, and for how many ticks they are not asked

    # --- decisions -------------------------------------------------------------------------------

    def choose(
        self,
        decode: Sequence[Slot],
        proposed: Sequence[tuple[Slot, int]],
        spare: int,
        *,
        level_max: int = 0,
    ) -> dict[int, int]:
        """Draft rows of each slot, by slot index, for `proposed` ones, in `spare` rows.

        Where spans must be equal, a slot may get more rows than it has proposals: up to `level_max`.
        """
        if not self.gain.allows(len(decode)):
            return {}
        best = self._best(decode, proposed, spare, level_max=level_max)
        if not best and spare > 0 and not self._knows:
            return self._try(decode, proposed, spare)
        return best

    def quiet(self, slots: int) -> bool:
        """Whether proposals of so many slots are known not to be wanted: asking takes time as well."""
        of, ticks = self._quiet
        if self.gain.allows(slots) and (slots != of or ticks <= 1):
            return False
        self._quiet = of, ticks - 1
        self._idle_ticks += 1
        return True

    def wanted(self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
        """How many proposals each slot should make for the next tick, of those that it may verify.

        `decode`: the slots that decode in it. The time of the drafter counts here: later it is spent.
        """
        if not able or not self.gain.allows(len(decode)):
            self._wanted_of = ()
            return {}
        batch = (len(decode), *(slot.arrival for slot, _ in able))
        if batch != self._wanted_of or self._wanted_for == 0:
            self._wanted = self._best(decode, able, spare, level_max=spare, drafting=True)
            self._wanted_of, self._wanted_for = batch, WANTED_FOR if self._knows else 1
        self._wanted_for -= 1
        if self._wanted:
            chosen = self._wanted
            return {slot.index: min(chosen[slot.index], most) for slot, most in able if slot.index in chosen}
        self._idle_ticks += 1
        if not self._knows and self._asked < ASKED_MAX:
            self._asked += 1
            return self._try(decode, able, spare)
        slots = min(len(able), COMPARE_SLOTS)
        due = self._compare_every(decode, slots) - self._idle_ticks
        if due > 0:
            self._wanted_for = 0
            self._quiet = len(decode), int(min(due, max(QUIET_FOR, len(decode) // QUIET_SHARE)))
            return {}
        self._idle_ticks = 0
        if not self._knows:
            return self._try(decode, able, spare)
        self._compared += slots
        some = islice(cycle(able), self._compared % len(able), self._compared % len(able) + slots)
        return {slot.index: min(count, TRIAL_TOKENS) for slot, count in some}

    def _compare_every(self, decode: Sequence[Slot], slots: int) -> float:
        """Ticks between proposals that are only compared: the slower the drafter, the more."""
        tick_s = self._cost.decode_s(len(decode), sum(slot.planned for slot in decode))
        spent_s = self._drafter_s.predict([1.0, slots, slots]) + self._wait_s
        least = COMPARE_AHEAD if self._ahead else COMPARE_EVERY
        return max(least, spent_s / max(COMPARE_SHARE * tick_s, SOONEST_S))

    def acceptance(self, slot: Slot) -> float:
        """The probability that a draft of this slot is accepted, if those before it were."""
        assert slot.job is not None
        hits, tries = self._all.of(slot.drafter)
        overall = (hits + PRIOR * PRIOR_WEIGHT) / (tries + PRIOR_WEIGHT)
        hits, tries = slot.job.drafts.of(slot.drafter)
        return (hits + overall * PRIOR_WEIGHT) / (tries + PRIOR_WEIGHT)

    # --- measurements ----------------------------------------------------------------------------

    def learn(self, record: DraftRecord, *, proposed: int, accepted: int, drafter: str = "") -> None:
        """One verification. Drafts after a rejected one were never judged."""
        tries = min(proposed, accepted + 1)
        record.add(drafter, proposed, accepted)
        record.observe(drafter, accepted, tries, MEMORY)
        self._all.add(drafter, proposed, accepted)
        self._all.trials += 1
        self._asked = 0
        if self._all.trials == TRIALS_MIN:
            self.gain.begin()  # a trial of few slots has all of them wait: it says nothing about later ticks
        self._all.observe(drafter, accepted, tries, MEMORY_ALL)

    def compared(self, record: DraftRecord, *, right: bool, drafter: str) -> None:
        """The first token of a proposal that was not verified, and what came instead of it."""
        record.observe(drafter, right, 1, MEMORY)
        self._all.observe(drafter, right, 1, MEMORY_ALL)

    def drafted(self, slots: int, counts: Sequence[int], seconds: float) -> None:
        """The drafter took so long to make proposals of these lengths, in a tick of `slots` slots."""
        if counts and seconds > 0.0:
            self._drafter_s.update([max(counts), sum(counts), len(counts)], seconds)
            if slots:
                self.gain.drafting(slots, seconds)

    def waited(self, slots: int, seconds: float) -> None:
        """The pause between two passes of which the second, of so many slots, waited for the first."""
        seconds = max(0.0, seconds)
        self._ahead = True
        if self._wait_s > 0.0:
            seconds = min(seconds, WAIT_OUTLIER * self._wait_s)
            self._wait_s += WAIT_WEIGHT * (seconds - self._wait_s)
        else:
            self._wait_s = seconds
        if slots:
            self.gain.drafting(slots, seconds)

    def passes(self, sequences: Sequence[int], counts: Sequence[int]) -> int:
        """Passes that the backend makes of decode spans with so many rows."""
        least = min(counts)
        if not self._equal_spans or least == max(counts):
            return 1
        longer = sorted(sequence for sequence, count in zip(sequences, counts, strict=True) if count > least)
        return 2 + sum(after - before > 1 for before, after in pairwise(longer))

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _knows(self) -> bool:
        """Whether predictions decide, not trials any more: there were enough, or they have cost enough."""
        return self._all.trials >= TRIALS_MIN or self.gain.losses > 0

    def _best(
        self,
        decode: Sequence[Slot],
        able: Sequence[tuple[Slot, int]],
        spare: int,
        *,
        level_max: int,
        drafting: bool = False,
    ) -> dict[int, int]:
        """Draft rows with the most tokens per second; empty: no drafts, or not enough is known."""
        contexts = sum(slot.planned for slot in decode)
        alone_s = self._cost.verify_s(len(decode), contexts)
        if not self._knows or alone_s <= 0.0:
            return {}
        offers = [Offer(s.index, s.sequence, count, self.acceptance(s), s.planned) for s, count in able]
        where = [(slot.index, slot.planned) for slot in decode]
        shapes = DraftShapes(where, offers, spare, level_max=level_max if self._equal_spans else None)
        best, found = GAIN_MIN * len(decode) / alone_s, None
        for shape in shapes:
            rows = len(decode) + shape.extra
            seconds = self._cost.verify_s(rows, contexts + shape.contexts, passes=shape.passes)
            if drafting:
                drafter_s = self._drafter_s.predict([shape.depth, shape.drafts, shape.slots])
                seconds += drafter_s + self._wait_s
            rate = (len(decode) + shape.expected) / seconds
            if rate > best:
                best, found = rate, shape
        return shapes.rows_of(found) if found is not None else {}

    def _try(self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
        """Until enough is known, the slots that have verified least verify a few.

        More of them where many slots run: all wait for each trial, however many it tries.
        """
        tokens = min(TRIAL_TOKENS, spare)
        slots = min(1 + len(decode) // TRIAL_SHARE, TRIALS_MIN - self._all.trials, spare // tokens)
        least = nsmallest(slots, able, key=lambda each: (_verified(each[0]), each[0].index))
        return {slot.index: min(count, tokens) for slot, count in least}


def _verified(slot: Slot) -> int:
    assert slot.job is not None
    return slot.job.drafts.proposed
