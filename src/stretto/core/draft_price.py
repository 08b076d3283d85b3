"""What drafts of a draft model cost, and whether they would pay: known before anything is spent on them.

A draft model computes the text of a request before its first draft (it is so many rows behind), then makes a
pass for each further draft. Its passes are timed when it is loaded, and whenever they run. It is asked where
the tokens that a request will still have save a multiple of what catching up takes: the length of an answer
is a guess. Knows nothing of lookup, whose price is microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.least_squares import LeastSquares
from stretto.core.slot import Slot

MODEL = "draft_model"  # its name as a drafter
WORTH = 2.0  # times the price of catching up, that the rest of an answer must save
ANSWER_WEIGHT = 0.1  # of a new answer's length
ANSWER_REST = 0.25  # of the mean length that an answer still has which is longer than that
SEEDED = 8  # times that a measurement at load counts
STEP_MAX = 2.0  # passes that take longer than so many steps have caught up as well

Passes = Sequence[tuple[int, float]]  # rows and seconds


class DraftPrice:
    """`passes`: measured at load; empty where there is no draft model."""

    def __init__(self, passes: Passes = ()) -> None:
        self.known = bool(passes)
        self._pass_s = LeastSquares(2)
        self._behind: dict[int, tuple[int, int, int]] = {}  # slot -> arrival, known tokens, rows behind
        self._answer_tokens = 0.0  # mean length; 0: none ended
        for _ in range(SEEDED):
            self.learn(passes)

    def pass_s(self, rows: int) -> float:
        return self._pass_s.predict([1.0, rows])

    def learn(self, passes: Passes) -> None:
        for rows, seconds in passes:
            if seconds > 0.0:
                self._pass_s.update([1.0, rows], seconds)

    def steps_s(self, passes: Passes, slots: int) -> float:
        """The part of these passes that making drafts took, without catching up."""
        return sum(min(seconds, STEP_MAX * self.pass_s(slots)) for _, seconds in passes)

    def ended(self, tokens: int) -> None:
        """An answer had so many tokens."""
        if tokens > 0:
            weight = ANSWER_WEIGHT if self._answer_tokens else 1.0
            self._answer_tokens += weight * (tokens - self._answer_tokens)

    def note_behind(self, slot: Slot, rows: int) -> None:
        """So many rows have to be computed before the next draft."""
        self._behind[slot.index] = (slot.arrival, len(slot.known), rows)

    def behind(self, slot: Slot) -> int | None:
        """Rows to compute before a draft, its own one not counted. None: the model has not said."""
        arrival, length, rows = self._behind.get(slot.index, (-1, 0, 0))
        if arrival != slot.arrival:
            return None
        return max(0, rows + len(slot.known) - length - 1)

    def catch_up_s(self, slot: Slot) -> float:
        """Of a slot that has not said how far behind it is: the whole text."""
        rows = self.behind(slot)
        rows = len(slot.known) if rows is None else rows
        return self.pass_s(rows) if rows > 0 else 0.0

    def rest_of(self, slot: Slot) -> float:
        """Tokens that this request will still have, presumably."""
        assert slot.job is not None
        most, mean = slot.job.length_max - len(slot.known), self._answer_tokens
        return min(most, max(mean - slot.job.generated, ANSWER_REST * mean)) if mean else most

    def pays(self, slot: Slot, saved_s: float) -> bool:
        """Whether catching up is worth it, if each token of this slot takes `saved_s` less afterwards."""
        return saved_s * self.rest_of(slot) > WORTH * self.catch_up_s(slot)
