"""The decision rule: which candidate of a question is faster, from the seconds that its probes took.

Pure. A probe is one kind of pass that every candidate of a question runs; its weight is its share of what
users wait for. A candidate's cost is the weighted mean of its times, each relative to the fastest one's. The
first candidate is the expected one: it stays unless another is clearly cheaper, so noise decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CLEARLY = 0.97  # of the expected candidate's cost
SAMPLES_MIN = 2
SPREAD_MAX = 1.15  # second best over best: a wider spread is not believed


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A choice between candidates. `clearly`: how much cheaper another than the first must be."""

    name: str
    candidates: tuple[str, ...]
    weights: Mapping[str, float]  # of each probe
    clearly: float = CLEARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`times`: best seconds of each candidate's probes; empty if not measured. `only`: there was no other.
    `unconfirmed`: another was cheaper, but must be found so at one more load.
    """

    question: str
    chosen: str
    times: Mapping[str, Mapping[str, float]]
    only: bool = False
    unconfirmed: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.times)


class Samples:
    """Seconds of passes, by candidate and probe."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[float]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, candidate: str, probe: str, seconds: float) -> None:
        self._found.setdefault((candidate, probe), []).append(seconds)

    def best(self, candidate: str, probe: str) -> float:
        return min(self._found[candidate, probe])

    def is_settled(self, question: Question, spread_max: float = SPREAD_MAX) -> bool:
        """Whether every probe of every candidate ran twice with nearly the same best time."""
        return all(
            self._spread(candidate, probe) <= spread_max
            for candidate in question.candidates
            for probe in question.weights
        )

    def times(self, question: Question) -> dict[str, dict[str, float]]:
        return {
            candidate: {probe: self.best(candidate, probe) for probe in question.weights}
            for candidate in question.candidates
        }

    def _spread(self, candidate: str, probe: str) -> float:
        found = sorted(self._found.get((candidate, probe), []))
        return found[SAMPLES_MIN - 1] / found[0] if len(found) >= SAMPLES_MIN else float("inf")


def costs(
    times: Mapping[str, Mapping[str, float]], weights: Mapping[str, float], candidates: Sequence[str]
) -> dict[str, float]:
    """Of each candidate: 1 is the fastest in every probe. Probes that a candidate lacks count for none."""
    probes = [probe for probe in weights if all(probe in times[one] for one in candidates)]
    fastest = {probe: min(times[one][probe] for one in candidates) for probe in probes}
    total = sum(weights[probe] for probe in probes)
    return {
        one: sum(weights[probe] * times[one][probe] / fastest[probe] for probe in probes) / total
        for one in candidates
    }


def decide(question: Question, times: Mapping[str, Mapping[str, float]]) -> Decision:
    """The cheapest candidate, where it is clearly cheaper than the first. Without times, the first."""
    first = question.candidates[0]
    if len(question.candidates) < 2 or not times:
        only = len(question.candidates) < 2
        return Decision(question=question.name, chosen=first, times={}, only=only)
    cost = costs(times, question.weights, question.candidates)
    best = min(question.candidates, key=lambda one: cost[one])
    chosen = best if cost[best] < question.clearly * cost[first] else first
    return Decision(question=question.name, chosen=chosen, times=times)
