"""Fairness between tenants, over the time in which each of them had requests waiting.

Only then do tenants compete: a tenant that asks for little and gets it is not treated unfairly. A request
waits from its due time to its first chunk of text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from stretto.loadgen.records import LoadRecord

Span = tuple[float, float]


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 for equal shares, 1/n if one tenant has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def fairness(records: Sequence[LoadRecord]) -> dict[str, Any] | None:
    """Tokens of each tenant while all had work queued, and Jain's index over them; None with one tenant."""
    tenants = sorted({record.tenant for record in records})
    if len(tenants) < 2:
        return None
    contended = _all_waiting([_waits(records, tenant) for tenant in tenants])
    tokens = {tenant: _tokens_in(records, tenant, contended) for tenant in tenants}
    return {
        "tenants": tenants,
        "contended_s": sum(end - start for start, end in contended),
        "tokens": tokens,
        "jain": jain(list(tokens.values())),
    }


def _waits(records: Sequence[LoadRecord], tenant: str) -> list[Span]:
    return [
        (record.due_s, record.chunks_s[0] if record.chunks_s else record.ended_s)
        for record in records
        if record.tenant == tenant
    ]


def _all_waiting(waits: Sequence[Sequence[Span]]) -> list[Span]:
    """The spans in which every tenant has at least one request waiting."""
    steps = sorted(
        step
        for index, spans in enumerate(waits)
        for start, end in spans
        for step in ((start, index, 1), (end, index, -1))
    )
    depth, found, since = [0] * len(waits), [], None
    for at_s, index, change in steps:
        depth[index] += change
        if all(depth) and since is None:
            since = at_s
        elif not all(depth) and since is not None:
            found.append((since, at_s))
            since = None
    return [(start, end) for start, end in found if end > start]


def _tokens_in(records: Sequence[LoadRecord], tenant: str, spans: Sequence[Span]) -> float:
    """Tokens that arrived within the spans; each chunk counts as its share of the answer's tokens."""
    starts = [start for start, _ in spans]
    total = 0.0
    for record in records:
        if record.tenant != tenant or not record.chunks_s:
            continue
        inside = 0
        for at_s in record.chunks_s:
            place = bisect_right(starts, at_s) - 1
            inside += place >= 0 and at_s <= spans[place][1]
        total += inside * record.tokens / len(record.chunks_s)
    return total
