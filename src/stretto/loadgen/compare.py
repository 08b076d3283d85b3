"""Repeats the same workload on several servers in turn; ratios with their spread.

Rounds are interleaved and their order is reversed every time, so that warm-up and other load on the machine
affect all servers alike. Ratios are taken within a round, then their median and range over the rounds. Every
run has its own texts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.records import LoadRun

Measure = Callable[[str, str], LoadRun]  # peer, run id
Tell = Callable[[str], None]

# Compared metrics: name, path in a summary, and whether more is better.
METRICS: dict[str, tuple[tuple[str, ...], bool]] = {
    "output tok/s": (("all", "output_tokens_per_s"), True),
    "requests/s": (("all", "requests_per_s"), True),
    "goodput/s": (("all", "goodput_per_s"), True),
    "TTFT mean": (("all", "ttft_s", "mean"), False),
    "TTFT p95": (("all", "ttft_s", "p95"), False),
    "inter-token p50": (("all", "itl_s", "p50"), False),
    "inter-token p99": (("all", "itl_s", "p99"), False),
    "longest gap": (("all", "longest_gap_s"), False),
    "end-to-end mean": (("all", "e2e_s", "mean"), False),
    "end-to-end p95": (("all", "e2e_s", "p95"), False),
    "makespan": (("all", "duration_s"), False),
    "later turns, TTFT mean": (("groups", "later", "ttft_s", "mean"), False),
    "later turns, TTFT p95": (("groups", "later", "ttft_s", "p95"), False),
    "streams' longest gap": (("special", "streams_longest_gap_s"), False),
    "long prompt's TTFT": (("special", "long_ttft_s"), False),
    "urgent TTFT p95, loaded": (("special", "urgent_ttft_p95_loaded_s"), False),
    "urgent TTFT p95, alone": (("special", "urgent_ttft_p95_alone_s"), False),
    "fairness (Jain)": (("fairness", "jain"), True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        return cls(median=statistics.median(values), low=min(values), high=max(values))


def interleave(
    peers: Sequence[str], measure: Measure, *, rounds: int, run_id: str, slo: Slo, tell: Tell
) -> dict[str, list[dict[str, Any]]]:
    """Summaries of each peer, one per round."""
    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
    for number in range(rounds):
        for peer in peers if number % 2 == 0 else list(reversed(peers)):
            tell(f"round {number + 1} of {rounds}: {peer}")
            found[peer].append(summary(measure(peer, f"{run_id}/{number}/{peer}"), slo))
    return found


def value(found: Mapping[str, Any], path: Sequence[str]) -> float | None:
    at: Any = found
    for name in path:
        at = at.get(name) if isinstance(at, Mapping) else None
    return float(at) if isinstance(at, int | float) else None


def ratios(
    base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], path: Sequence[str]
) -> list[float]:
    """`base` ÷ `other` per round; rounds without a value for one of them are skipped."""
    pairs = [(value(a, path), value(b, path)) for a, b in zip(base, other, strict=True)]
    return [a / b for a, b in pairs if a is not None and b]


def compared(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per metric: the range of each peer, and of the first peer's ratio to each other."""
    first, *others = found
    rows = []
    for name, (path, more_is_better) in METRICS.items():
        ranges = {peer: _range([value(item, path) for item in found[peer]]) for peer in found}
        if all(item is None for item in ranges.values()):
            continue
        rows.append(
            {
                "metric": name,
                "more_is_better": more_is_better,
                "peers": ranges,
                "ratios": {peer: _range(ratios(found[first], found[peer], path)) for peer in others},
            }
        )
    return rows


def _range(values: Sequence[float | None]) -> Range | None:
    known = [item for item in values if item is not None]
    return Range.of(known) if known else None


def plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as JSON values."""

    def values(ranges: Mapping[str, Range | None]) -> dict[str, Any]:
        return {peer: asdict(item) if item is not None else None for peer, item in ranges.items()}

    return [{**row, "peers": values(row["peers"]), "ratios": values(row["ratios"])} for row in rows]
