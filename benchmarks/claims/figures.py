"""Figures of a claim: medians and ratios over rounds, failures, and what the result file holds of them."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.lab import OURS, THEIRS, Summary
from stretto.loadgen import compare

Found = dict[str, list[Summary]]


def ratio(found: Found, *path: str, peer: str = THEIRS) -> float | None:
    """The median of ours ÷ the peer's."""
    values = compare.ratios(found[OURS], found[peer], path)
    return statistics.median(values) if values else None


def ours(found: Found, *path: str) -> float | None:
    values = [value for item in found[OURS] if (value := compare.value(item, path)) is not None]
    return statistics.median(values) if values else None


def failures(found: Found) -> float:
    return float(sum(sum(item["all"]["errors"].values()) for item in found[OURS]))


def report(found: Found) -> dict[str, Any]:
    return {"rounds": found, "compared": compare.plain(compare.compared(found))}
