"""Statistics of a run: rates, percentiles, goodput, errors, and workload-specific values."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stretto.loadgen.fairness import fairness
from stretto.loadgen.records import STOPPED, LoadRecord, LoadRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency targets of a good request."""

    ttft_s: float = 2.0
    itl_s: float = 0.2  # mean time per token after the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One quantity over many requests."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Statistics of a run or of one group of its requests. Times in seconds."""

    requests: int
    ok: int
    stopped: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens: int
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    ttft_s: Spread | None
    itl_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    longest_gap_s: float
    goodput_per_s: float
    good_share: float
    late_s: float  # maximum delay of the client behind its plan


def percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile of sorted values, with linear interpolation."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float | None]) -> Spread | None:
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def figures(records: Sequence[LoadRecord], slo: Slo) -> Figures:
    """Latencies cover successful requests and those stopped as planned; errors are counted separately."""
    served = [record for record in records if record.ok or record.error == STOPPED]
    done = [record for record in records if record.ok]
    begun_s = min((record.due_s for record in records), default=0.0)
    span_s = max((record.ended_s for record in records), default=0.0) - begun_s
    good = sum(is_good(record, slo) for record in done)
    tokens = sum(record.tokens for record in records)
    gaps = [gap for record in served for gap in record.gaps_s()]
    return Figures(
        requests=len(records),
        ok=len(done),
        stopped=len(served) - len(done),
        errors=dict(Counter(record.error for record in records if record.error not in {"", STOPPED})),
        duration_s=span_s,
        requests_per_s=_per(len(done), span_s),
        output_tokens=tokens,
        output_tokens_per_s=_per(tokens, span_s),
        prompt_tokens=sum(record.prompt_tokens for record in records),
        cached_tokens=sum(record.cached_tokens for record in records),
        drafted_tokens=sum(record.drafted_tokens for record in records),
        accepted_tokens=sum(record.accepted_tokens for record in records),
        ttft_s=spread([record.ttft_s for record in served]),
        itl_s=spread(gaps),
        tpot_s=spread([record.tpot_s for record in served]),
        e2e_s=spread([record.ended_s - record.due_s for record in done]),
        longest_gap_s=max(gaps, default=0.0),
        goodput_per_s=_per(good, span_s),
        good_share=good / len(records) if records else 0.0,
        late_s=max((record.sent_s - record.due_s for record in served), default=0.0),
    )


def is_good(record: LoadRecord, slo: Slo) -> bool:
    ttft_s, tpot_s = record.ttft_s, record.tpot_s
    return record.ok and ttft_s is not None and ttft_s <= slo.ttft_s and (tpot_s or 0.0) <= slo.itl_s


def _per(count: float, span_s: float) -> float:
    return count / span_s if span_s > 0 else 0.0


def summary(run: LoadRun, slo: Slo) -> dict[str, Any]:
    """The run as plain values: total, groups, and workload-specific values."""
    records = run.measured
    tokens = sum(record.tokens for record in run.records)
    groups = sorted({record.group for record in records})
    return {
        "workload": run.workload,
        "run_id": run.run_id,
        "url": run.url,
        "shape": run.shape,
        "slo": asdict(slo),
        "all": asdict(figures(records, slo)),
        "groups": {
            group: asdict(figures([r for r in records if r.group == group], slo))
            for group in groups
            if len(groups) > 1
        },
        # Urgent requests are served first by design: compare shares among the others.
        "fairness": fairness([record for record in records if record.priority != "urgent"]),
        "special": special(run),
        "client": {
            "workers": run.workers,
            "cpu_s": run.client_cpu_s,
            "cpu_us_per_token": 1e6 * _per(run.client_cpu_s, tokens),
        },
    }


def special(run: LoadRun) -> dict[str, float]:
    """Workload-specific values."""
    if run.workload == "stall":
        return _stall(run)
    if run.workload == "mixed":
        return _mixed(run)
    return {}


def _stall(run: LoadRun) -> dict[str, float]:
    """Longest gap of the streams after the long prompt was sent."""
    long = next((record for record in run.records if record.group == "long"), None)
    if long is None:
        return {}
    silences = []
    for record in run.records:
        if record.group == "stream":
            ends = [*record.chunks_s, record.ended_s] if record.error == STOPPED else record.chunks_s
            pairs = itertools.pairwise(ends)
            silences += [later - sooner for sooner, later in pairs if later > long.sent_s]
    found = {"streams_longest_gap_s": max(silences, default=0.0)}
    return found | ({"long_ttft_s": long.ttft_s} if long.ttft_s is not None else {})


def _mixed(run: LoadRun) -> dict[str, float]:
    """TTFT of urgent requests under overload and alone."""
    load = [record for record in run.records if record.group == "background"]

    def busy(at_s: float) -> int:
        return sum(record.due_s <= at_s < record.ended_s for record in load)

    most = max((busy(record.due_s) for record in load), default=0)
    groups: dict[str, list[float | None]] = {"urgent_alone": [], "urgent": []}
    for record in run.records:
        # A request that arrived when the load was ending says nothing about load.
        if record.ok and (record.group == "urgent_alone" or busy(record.due_s) * 2 > most):
            groups.setdefault(record.group, []).append(record.ttft_s)
    alone, loaded = spread(groups["urgent_alone"]), spread(groups["urgent"])
    if alone is None or loaded is None:
        return {}
    return {
        "urgent_ttft_p95_alone_s": alone.p95,
        "urgent_ttft_p95_loaded_s": loaded.p95,
        "urgent_delay_s": loaded.p95 - alone.p95,
    }
