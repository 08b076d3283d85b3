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

A draft model, where there is one, is asked apart from lookup (`ask_model`): its price is known before it is
paid (`draft_price`).

Where ticks are planned ahead, proposals need the tokens of the tick in flight: the next one waits for them,
and the device does nothing meanwhile. What that takes is measured, and counts as time of the drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import cycle, islice
from operator import attrgetter

from stretto.core.cost import CostModel
from stretto.core.draft_gain import DraftGain, Kind
from stretto.core.draft_plan import DraftPlans, Plan, offers_of
from stretto.core.draft_price import MODEL, DraftPrice, Passes
from stretto.core.draft_purse import DraftPurses
from stretto.core.draft_quiet import QuietTicks
from stretto.core.draft_shapes import DraftShape, Offer
from stretto.core.least_squares import SOONEST_S, LeastSquares
from stretto.core.slot import DraftRecord, Slot

PRIOR = 0.7  # acceptance, until something was verified
PRIOR_WEIGHT = 4.0  # verified drafts that the estimate of all requests counts as, in that of one
MEMORY = 0.9  # what a verification leaves of the weight of earlier ones, for a request
MEMORY_ALL = 0.99  # … and for all of them
TRIALS_MIN = 8  # verifications before predictions decide
EVIDENCE_MIN = 2.5  # judged proposals of a request, the older the less: three
SURE = 0.8  # … or such an acceptance, by those of others
ASKED_MAX = 16  # ticks in a row that ask for a trial; then as rarely as for comparisons
TRIAL_TOKENS = 2  # drafts of one slot that are verified until then
TRIAL_SHARE = 8  # of so many slots one more is tried in the same tick
COMPARE_TOKENS = 4  # of a proposal that is compared
COMPARE_SLOTS = 16  # whose proposals are compared at a time
COMPARE_EVERY = 6  # ticks, at least, between proposals that are only compared
COMPARE_AHEAD = 16  # … where ticks are planned ahead and must wait for them
COMPARE_SHARE = 0.0006  # of the time of ticks that the drafter may take for those; deciding takes twice that
WAIT_WEIGHT, WAIT_OUTLIER = 0.1, 3.0  # of a new measurement, and the most that one counts for
WANTED_FOR = 8  # ticks for which the slots that make proposals stay the same, if the batch does
QUIET_FOR = 16  # ticks for which slots are not asked, if none of their proposals are wanted
QUIET_SHARE = 4  # … or a tick for each of so many slots: looking takes longer then
UNKNOWN = ""  # the drafter of a slot without proposals so far: some lookup


class DraftPlanner:
    """`model_passes`: rows and seconds of passes of the draft model, measured at load.

    `ahead`: ticks are planned ahead, so that one waits for proposals, whether or not they are verified.
    """

    def __init__(
        self, cost: CostModel, *, equal_spans: bool = False, model_passes: Passes = (), ahead: bool = True
    ) -> None:
        self.gain = DraftGain(cost)
        self._purses = DraftPurses(unlimited=ahead)
        self._ahead = ahead
        self.model = DraftPrice(model_passes)
        self._model_credit_s = 0.0  # that may be spent on finding out whether its drafts are better now
        self._model_quiet = QuietTicks()
        self._model_idle = 0  # ticks in which it was not
        self._model_plan: Plan | None = None
        self._model_of: tuple[object, ...] = ()
        self._model_for = 0  # ticks for which the plan stays, if the batch does
        self._cost = cost
        self._plans = DraftPlans(cost, equal_spans=equal_spans)
        self._all = DraftRecord()
        self._drafter_s = LeastSquares(3)  # depth, drafts, slots -> seconds
        self._wait_s = 0.0  # the device's pause before a tick that waits for the tokens of the one before
        self._judged = 0  # tokens of proposals that were compared
        self._idle_ticks = 0  # without proposals
        self._asked = 0  # ticks that asked for trials since the last one: text without repetitions has none
        self._compared = 0  # slots that made proposals to be compared
        self._wanted: dict[int, int] = {}
        self._wanted_of: tuple[object, ...] = ()
        self._wanted_for = 0
        self._quiet = QuietTicks()

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
        allowed = {kind: self._may_verify(len(decode), kind) for kind in Kind}
        proposed = [
            (slot, count)
            for slot, count in proposed
            if allowed[_kind(slot.drafter)] and self._has_evidence(slot)
        ]
        if not proposed:
            return {}
        best = self._best(decode, proposed, spare, level_max=level_max)
        if not best and spare > 0 and not self._knows and self._ahead:
            return self._try(decode, proposed, spare)
        return best

    def quiet(self, slots: int) -> bool:
        """Whether proposals of so many slots are known not to be wanted: asking takes time as well."""
        quiet = self._quiet.passes(slots) or not (self.gain.allows(slots) and self._purses.may_look(slots))
        self._idle_ticks += quiet
        return quiet

    def wanted(self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
        """How many proposals each slot should make for the next tick, of those that it may verify.

        `decode`: the slots that decode in it. The time of the drafter counts here: later it is spent.
        """
        if not able or not self.gain.allows(len(decode)):
            self._wanted_of = ()
            return {}
        batch = (len(decode), *((slot.arrival, slot.drafter == UNKNOWN) for slot, _ in able))
        if batch != self._wanted_of or self._wanted_for == 0:
            self._wanted = self._best(
                decode, able, spare, level_max=spare, drafter=_looks_up, drafter_s=self._lookup_s
            )
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
        every = self._compare_every(decode, slots)
        due = every - self._idle_ticks
        self._quiet.begin(len(decode), int(min(due if due > 0 else every, _quiet_ticks(len(decode)))))
        if due > 0:
            return {}
        self._idle_ticks = 0
        if not self._knows and self._ahead:
            return self._try(decode, able, spare)
        self._compared += slots
        some = islice(cycle(able), self._compared % len(able), self._compared % len(able) + slots)
        return {slot.index: min(count, COMPARE_TOKENS) for slot, count in some}

    def ask_model(
        self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int
    ) -> dict[int, int]:
        """How many drafts the draft model should make for each slot; 0: it only says how far behind it is.

        Nothing is asked where its passes and the rows to verify cost more than they save, even without
        catching up. Where they would not if every draft were right, it is tried now and then.
        """
        if not able or not self.gain.allows(len(decode), Kind.MODEL):
            return {}
        batch = (len(decode), *(slot.arrival for slot, _ in able))
        if batch != self._model_of or self._model_for == 0:
            self._model_of, self._model_for = batch, WANTED_FOR
            offers = offers_of(able, lambda slot: self.acceptance(slot, MODEL))
            self._model_plan = self._plan(decode, offers, spare, level_max=spare, drafter_s=self._model_s)
        self._model_for -= 1
        found = self._model_plan
        asked = self._try_model(decode, able, spare) if found is None else self._paid(found, able)
        if not asked:
            self._model_quiet.begin(len(decode), _quiet_ticks(len(decode)))
        return asked

    def model_quiet(self, slots: int) -> bool:
        """Whether drafts of a draft model are known not to be wanted of so many slots."""
        quiet = self._model_quiet.passes(slots) or not self.gain.allows(slots, Kind.MODEL)
        self._model_idle += quiet
        return quiet

    def _paid(self, found: Plan, able: Sequence[tuple[Slot, int]]) -> dict[int, int]:
        """Drafts of the slots for which catching up is worth it."""
        shape, asked = found.shape, dict[int, int]()
        saved_s = found.saved_s / (shape.slots + shape.expected)  # for each token of these slots
        for slot, most in able:
            if slot.index in found.rows:
                if self.model.pays(slot, saved_s):
                    asked[slot.index] = min(found.rows[slot.index], most)
                elif self.model.behind(slot) is None:
                    asked[slot.index] = 0
        return asked

    def _try_model(
        self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int
    ) -> dict[int, int]:
        """Compare a proposal of the slot that is least behind, once the time for that has been saved up."""
        contexts = sum(slot.planned for slot in decode)
        ticks, self._model_idle = 1 + self._model_idle, 0
        self._model_credit_s += ticks * COMPARE_SHARE * self._cost.decode_s(len(decode), contexts)
        slot, most = min(able, key=lambda each: self.model.catch_up_s(each[0]))
        count = min(most, TRIAL_TOKENS)
        price_s = self.model.catch_up_s(slot) + count * self.model.pass_s(1)
        if self._model_credit_s < price_s:
            return {}
        self._model_credit_s = 0.0
        hope = self._plan(
            decode, offers_of(able, lambda _: 1.0), spare, level_max=spare, drafter_s=self._model_s
        )
        return {slot.index: count} if hope is not None else {}

    def _compare_every(self, decode: Sequence[Slot], slots: int) -> float:
        """Ticks between proposals that are only compared: the slower the drafter, the more."""
        tick_s = self._cost.decode_s(len(decode), sum(slot.planned for slot in decode))
        spent_s = self._drafter_s.predict([1.0, slots, slots]) + self._wait_s
        least = COMPARE_AHEAD if self._wait_s > 0.0 else COMPARE_EVERY
        return max(least, spent_s / max(COMPARE_SHARE * tick_s, SOONEST_S))

    def acceptance(self, slot: Slot, drafter: str | None = None) -> float:
        """The probability that a draft of this slot is accepted, if those before it were.

        By the drafter that made its last proposal, unless another one is named.
        """
        assert slot.job is not None
        drafter = slot.drafter if drafter is None else drafter
        hits, tries = self._all.of(drafter)
        overall = (hits + PRIOR * PRIOR_WEIGHT) / (tries + PRIOR_WEIGHT)
        hits, tries = slot.job.drafts.of(drafter)
        return (hits + overall * PRIOR_WEIGHT) / (tries + PRIOR_WEIGHT)

    # --- measurements ----------------------------------------------------------------------------

    def learn(self, record: DraftRecord, *, proposed: int, accepted: int, drafter: str = "") -> None:
        """One verification. Drafts after a rejected one were never judged."""
        tries = min(proposed, accepted + 1)
        record.add(drafter, proposed, accepted)
        self._all.add(drafter, proposed, accepted)
        self._all.trials += 1
        self._asked = 0
        if self._all.trials == TRIALS_MIN:
            self.gain.begin()  # a trial of few slots has all of them wait: it says nothing about later ticks
        self._observe(record, drafter, accepted, tries)

    def compared(self, record: DraftRecord, *, hits: int, tries: int, drafter: str) -> None:
        """So many tokens of a proposal that was not verified were right, of those that were judged."""
        self._judged += tries
        self._observe(record, drafter, hits, tries)

    def drafted(self, slots: int, counts: Sequence[int], seconds: float) -> None:
        """The drafter took so long to make proposals of these lengths, in a tick of `slots` slots."""
        if counts and seconds > 0.0:
            self._drafter_s.update([max(counts), sum(counts), len(counts)], seconds)
            if slots:
                self.gain.drafting(slots, seconds)
                self._purses.looked(slots, seconds)

    def plain(self, slots: int, contexts: int, seconds: float) -> None:
        """A tick of one row for each slot. `contexts`: the sum of their context lengths."""
        self.gain.plain(slots, contexts, seconds)
        self._purses.plain(slots, seconds)

    def verified(self, slots: int, contexts: int, *, tokens: int, seconds: float, kind: Kind) -> None:
        """A tick with drafts gave so many tokens."""
        saved_s = self.gain.verified(slots, contexts, tokens=tokens, seconds=seconds, kind=kind)
        self._purses.verified(slots, kind, saved_s)

    def model_ran(self, slots: int, passes: Passes) -> None:
        """Passes of the draft model in a tick of `slots` slots; 0: they only caught up, which is no loss."""
        self.model.learn(passes)
        if slots:
            self.gain.drafting(slots, self.model.steps_s(passes, slots), Kind.MODEL)

    def waited(self, slots: int, seconds: float, kind: Kind | None = Kind.LOOKUP) -> None:
        """The pause between two passes of which the second, of so many slots, waited for the first.

        `kind`: the account that it is charged to; None: no account.
        """
        seconds = max(0.0, seconds)
        if self._wait_s > 0.0:
            seconds = min(seconds, WAIT_OUTLIER * self._wait_s)
            self._wait_s += WAIT_WEIGHT * (seconds - self._wait_s)
        else:
            self._wait_s = seconds
        if slots and kind is not None:
            self.gain.drafting(slots, seconds, kind)

    def passes(self, sequences: Sequence[int], counts: Sequence[int]) -> int:
        """Passes that the backend makes of decode spans with so many rows."""
        return self._plans.passes(sequences, counts)

    # --- inside ----------------------------------------------------------------------------------

    def _observe(self, record: DraftRecord, drafter: str, hits: int, tries: int) -> None:
        """What lookup finds counts for `UNKNOWN` as well, for requests without a proposal so far."""
        if not self._wanted:
            self._wanted_for = 0  # decide anew
        for name in (drafter,) if drafter in (MODEL, UNKNOWN) else (drafter, UNKNOWN):
            record.observe(name, hits, tries, MEMORY)
            self._all.observe(name, hits, tries, MEMORY_ALL)

    @property
    def _knows(self) -> bool:
        """Whether predictions decide, not trials any more: there were enough, or they have cost enough."""
        judged = 0 if self._ahead else self._judged
        return max(self._all.trials, judged) >= TRIALS_MIN or self.gain.losses > 0

    def _may_verify(self, slots: int, kind: Kind) -> bool:
        return self.gain.allows(slots, kind) and self._purses.may_lose(slots, kind)

    def _has_evidence(self, slot: Slot) -> bool:
        """Whether the request's own proposals were right, where comparing some first costs no row."""
        if self._ahead or slot.drafter == MODEL:
            return True
        assert slot.job is not None
        _, tries = slot.job.drafts.of(slot.drafter)
        return tries >= EVIDENCE_MIN or self.acceptance(slot) >= SURE

    def _best(
        self,
        decode: Sequence[Slot],
        able: Sequence[tuple[Slot, int]],
        spare: int,
        *,
        level_max: int,
        drafter: Callable[[Slot], str] = attrgetter("drafter"),
        drafter_s: Callable[[DraftShape], float] = lambda _: 0.0,
    ) -> dict[int, int]:
        """Draft rows with the most tokens per second; empty: no drafts, or not enough is known."""
        if not self._knows or not self._purses.may_lose(len(decode)):
            return {}
        offers = offers_of(able, lambda slot: self.acceptance(slot, drafter(slot)))
        found = self._plan(decode, offers, spare, level_max=level_max, drafter_s=drafter_s)
        return found.rows if found is not None else {}

    def _plan(
        self,
        decode: Sequence[Slot],
        offers: Sequence[Offer],
        spare: int,
        *,
        level_max: int,
        drafter_s: Callable[[DraftShape], float],
    ) -> Plan | None:
        """Of the ways to spend rows, the one with the most tokens per second; None: without drafts."""
        return self._plans.best(decode, offers, spare, level_max=level_max, drafter_s=drafter_s)

    def _lookup_s(self, shape: DraftShape) -> float:
        return self._drafter_s.predict([shape.depth, shape.drafts, shape.slots]) + self._wait_s

    def _model_s(self, shape: DraftShape) -> float:
        """All slots share a pass for each draft position."""
        return shape.depth * self.model.pass_s(shape.slots) + self._wait_s

    def _try(self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
        """Until enough is known, proposals are compared, or the slots that have verified least verify a few.

        More of them where many slots run: all wait for each trial, however many it tries.
        """
        if not self._ahead:
            return {slot.index: min(count, COMPARE_TOKENS) for slot, count in able[:COMPARE_SLOTS]}
        tokens = min(TRIAL_TOKENS, spare)
        slots = min(1 + len(decode) // TRIAL_SHARE, TRIALS_MIN - self._all.trials, spare // tokens)
        least = nsmallest(slots, able, key=lambda each: (_verified(each[0]), each[0].index))
        return {slot.index: min(count, tokens) for slot, count in least}


def _quiet_ticks(slots: int) -> int:
    return max(QUIET_FOR, slots // QUIET_SHARE)


def _kind(drafter: str) -> Kind:
    return Kind.MODEL if drafter == MODEL else Kind.LOOKUP


def _looks_up(slot: Slot) -> str:
    """The lookup that it would use, if the draft model made its last proposal: not known which."""
    return slot.drafter if slot.drafter != MODEL else UNKNOWN


def _verified(slot: Slot) -> int:
    assert slot.job is not None
    return slot.job.drafts.proposed
