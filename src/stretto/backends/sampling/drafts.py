"""Speculation by prompt lookup: proposes what followed the last few tokens at their previous occurrence.

Proposals come from the request's own tokens, so they are free; verifying them is not. A drafter stops for
good when so few of its proposals are accepted that the extra rows cost more than they gain.
"""

from __future__ import annotations

from array import array

GRAMS = (3, 2)  # the longer one first: it is right more often
WEIGHT = 0.15  # of the newest verification in the moving average
TRIALS_MIN = 6
NONE: array[int] = array("i")


class Drafter:
    """Proposals for one request. `cost` is an extra row's time as a share of a plain decode row's."""

    def __init__(self, tokens: array[int], count: int, *, cost: float) -> None:
        self._tokens = array("i")
        self._count = count
        self._cost = cost
        self._seen: dict[tuple[int, ...], int] = {}
        self._share = 1.0  # accepted of proposed, moving average
        self._trials = 0
        self.enabled = True
        self.extend(tokens)

    def extend(self, tokens: array[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens) - 1  # the gram before this token now has a continuation
            for size in GRAMS:
                if end >= size:
                    self._seen[tuple(self._tokens[end - size : end])] = end

    def propose(self) -> array[int]:
        if not self.enabled:
            return NONE
        for size in GRAMS:
            if len(self._tokens) >= size:
                at = self._seen.get(tuple(self._tokens[-size:]))
                if at is not None:
                    return self._tokens[at : at + self._count]
        return NONE

    def learn(self, *, proposed: int, accepted: int) -> None:
        """Record one verification. Stops proposing for this request if too few are accepted."""
        if proposed <= 0:
            return
        self._trials += 1
        self._share += WEIGHT * (accepted / proposed - self._share)
        if self._trials >= TRIALS_MIN and self._share < self._cost:
            self.enabled = False
