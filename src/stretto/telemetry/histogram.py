"""A histogram for the token path: one bisection and two additions per observation, no lock.

It belongs to one thread. `buckets` returns cumulative counts for Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Seconds. Waits and whole requests; the gap between two tokens.
WAIT_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
GAP_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` observations of the same value, e.g. of tokens that arrived together."""
        self.counts[bisect_left(self.edges, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper edge, observations at or below it), to +Inf."""
        found: list[tuple[str, float]] = []
        below = 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            below += count
            found.append(("+Inf" if edge == float("inf") else str(edge), float(below)))
        return found

    def quantile(self, share: float) -> float:
        """Approximate quantile: the upper edge of its bucket; 0 without observations."""
        wanted = share * self.count
        below = 0
        for edge, count in zip((*self.edges, self.edges[-1]), self.counts, strict=True):
            below += count
            if count and below >= wanted:
                return edge
        return 0.0
