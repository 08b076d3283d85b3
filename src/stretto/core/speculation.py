"""How many draft tokens each slot verifies in a tick: as many as raise the tokens per second.

A draft is a row of the pass whether or not it is accepted. If the drafts of a slot are accepted with
probability p each, its n-th draft yields a token with probability p to the n. Drafts are added in the order
of that probability while expected tokens divided by the predicted time of the pass grow: many for one stream
whose drafts are good, none beside fifteen others, whose rows already fill the pass.

Acceptance is learned for each request, starting from that of all requests. Where no draft is worth its row,
one slot verifies a few of them now and then, so that both estimates stay current.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.cost import CostModel
from stretto.core.slot import DraftRecord, Slot

GAIN_MIN = 1.02  # tokens per second with drafts, over those without: less is noise
PRIOR = 0.7  # acceptance, until something was verified
PRIOR_WEIGHT = 4.0  # verified drafts that the estimate of all requests counts as, in that of one
MEMORY = 0.9  # what a verification leaves of the weight of earlier ones, for a request
MEMORY_ALL = 0.99  # … and for all of them
TRIALS_MIN = 8  # verifications before predictions decide
EXPLORE_EVERY = 64  # ticks without a draft, where there were proposals
EXPLORE_TOKENS = 2


class DraftPlanner:
    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._all = DraftRecord()
        self._idle_ticks = 0

    def choose(
        self, decode: Sequence[Slot], proposed: Sequence[tuple[Slot, int]], spare: int
    ) -> dict[int, int]:
        """Drafts that each slot verifies, by slot index, of `proposed` ones, in `spare` rows."""
        steps = sorted(
            (-(chance**nth), slot.index, nth, slot.planned)
            for slot, count in proposed
            for chance in (self.acceptance(slot),)
            for nth in range(1, count + 1)
        )[:spare]
        worthwhile = self._worthwhile(decode, [(-chance, context) for chance, _, _, context in steps])
        chosen = {index: nth for _, index, nth, _ in steps[:worthwhile]}
        if chosen:
            self._idle_ticks = 0
            return chosen
        return self._explore(proposed, spare)

    def acceptance(self, slot: Slot) -> float:
        """The probability that a draft of this slot is accepted, if those before it were."""
        overall = (self._all.hits + PRIOR * PRIOR_WEIGHT) / (self._all.tries + PRIOR_WEIGHT)
        assert slot.job is not None
        own = slot.job.drafts
        return (own.hits + overall * PRIOR_WEIGHT) / (own.tries + PRIOR_WEIGHT)

    def learn(self, record: DraftRecord, *, proposed: int, accepted: int) -> None:
        """One verification. Drafts after a rejected one were never judged."""
        tries = min(proposed, accepted + 1)
        record.proposed += proposed
        record.accepted += accepted
        record.observe(accepted, tries, MEMORY)
        self._all.proposed += proposed
        self._all.accepted += accepted
        self._all.trials += 1
        self._all.observe(accepted, tries, MEMORY_ALL)

    def _worthwhile(self, decode: Sequence[Slot], steps: Sequence[tuple[float, int]]) -> int:
        """How many drafts, the most likely first, give the most tokens per second; 0 until it is known.

        `steps` are chance and context of each.
        """
        contexts = sum(slot.planned for slot in decode)
        alone_s = self._cost.decode_s(len(decode), contexts)
        if self._all.trials < TRIALS_MIN or alone_s <= 0.0:
            return 0
        expected = float(len(decode))
        best, count = GAIN_MIN * expected / alone_s, 0
        for extra, (chance, context) in enumerate(steps, 1):
            expected += chance
            contexts += context
            rate = expected / self._cost.decode_s(len(decode) + extra, contexts)
            if rate > best:
                best, count = rate, extra
        return count

    def _explore(self, proposed: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
        """Now and then, and until enough is known, the slot that has verified least tries a few."""
        self._idle_ticks += 1
        if spare < 1 or (self._all.trials >= TRIALS_MIN and self._idle_ticks < EXPLORE_EVERY):
            return {}
        self._idle_ticks = 0
        slot, count = min(proposed, key=lambda each: (_verified(each[0]), each[0].index))
        return {slot.index: min(count, EXPLORE_TOKENS, spare)}


def _verified(slot: Slot) -> int:
    assert slot.job is not None
    return slot.job.drafts.proposed
