"""A line through what was measured, that stays a line: for figures that are learned while they are used.

Least squares over the last samples (older ones fade). Traffic does not vary as an experiment would: for
minutes every tick has the same rows. So each solution starts from the one before: what the samples do not
tell apart stays as it was, and is not what noise makes of it. No coefficient is below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

FORGETTING = 0.98
STAYING = 0.03  # how much the solution before counts, beside the samples
NEVER_SEEN = 1e-30
SOONEST_S = 1e-9


class LeastSquares:
    def __init__(self, size: int) -> None:
        self.coefficients = [0.0] * size
        self.samples = 0
        self.doubt()

    def doubt(self) -> None:
        """What was learned does not hold any more: believe the next samples at once."""
        size = len(self.coefficients)
        self._products = [[0.0] * size for _ in range(size)]  # of the inputs with each other
        self._answers = [0.0] * size  # of the inputs with what was measured

    def predict(self, x: Sequence[float]) -> float:
        predicted: float = sum(map(mul, self.coefficients, x))
        return predicted

    def update(self, x: Sequence[float], y: float) -> None:
        """Weighted by 1/y, so that relative errors count."""
        weight = 1.0 / max(y, SOONEST_S)
        scaled = [value * weight for value in x]
        for i, (row, value) in enumerate(zip(self._products, scaled, strict=True)):
            for j, other in enumerate(scaled):
                row[j] = FORGETTING * row[j] + value * other
            self._answers[i] = FORGETTING * self._answers[i] + value
        self.samples += 1
        self._solve()

    def _solve(self) -> None:
        """A coefficient that would be negative is zero, and the others are found without it."""
        size = len(self.coefficients)
        stay = [STAYING * max(self._products[i][i], NEVER_SEEN) for i in range(size)]
        free = list(range(size))
        while free:
            matrix = [[self._products[i][j] + (stay[i] if i == j else 0.0) for j in free] for i in free]
            right = [self._answers[i] + stay[i] * self.coefficients[i] for i in free]
            found = dict(zip(free, solved(matrix, right), strict=True))
            positive = [i for i in free if found[i] >= 0.0]
            if positive == free:
                break
            free = positive
        self.coefficients = [found[i] if i in free else 0.0 for i in range(size)]


def solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The unknowns of a small positive definite system, by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        pivot = rows[at]
        for row in rows[at + 1 :]:
            share = row[at] / pivot[at]
            for j in range(at, size + 1):
                row[j] -= share * pivot[j]
    answer = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][j] * answer[j] for j in range(at + 1, size))
        answer[at] = (rows[at][size] - known) / rows[at][at]
    return answer
