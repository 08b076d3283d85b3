"""Recorded traces as users: Azure's CSV (times and lengths) and Mooncake's JSONL (and shared prefixes).

A Mooncake prompt consists of blocks of 512 tokens with ids; equal ids become equal texts, so that prefixes
are shared as recorded. Lengths, including blocks, are divided to fit a small machine.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stretto.errors import BenchError
from stretto.loadgen.plan import Shot, User
from stretto.loadgen.shapes import Shape
from stretto.loadgen.words import Texts

BLOCK_TOKENS = 512
AROUND = 16  # arrivals on either side, for the local rate


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One line of a trace."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path, limit: int) -> list[TraceRequest]:
    """The first `limit` requests, from time 0."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = _mooncake(file) if path.suffix in {".jsonl", ".json"} else _azure(file)
            found = list(itertools.islice(lines, limit))
    except OSError as error:
        raise BenchError(f"{path.name}: {error.strerror}", hint="give the trace with --trace FILE") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path.name} is not a trace: {error!r}",
            hint="a CSV has TIMESTAMP, ContextTokens, GeneratedTokens; JSONL has timestamp, input_length, …",
        ) from None
    if not found:
        raise BenchError(f"{path.name} contains no requests")
    found.sort(key=lambda arrival: arrival.at_s)
    return found


def _azure(file: Iterator[str]) -> Iterator[TraceRequest]:
    rows = csv.DictReader(file)
    start_s: float | None = None
    for row in rows:
        at_s = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).replace(tzinfo=UTC).timestamp()
        start_s = at_s if start_s is None else start_s
        yield TraceRequest(
            at_s=at_s - start_s,
            input_tokens=int(row["ContextTokens"]),
            output_tokens=int(row["GeneratedTokens"]),
        )


def _mooncake(file: Iterator[str]) -> Iterator[TraceRequest]:
    start_ms: float | None = None
    for line in file:
        if not line.strip():
            continue
        row = json.loads(line)
        at_ms = float(row["timestamp"])
        start_ms = at_ms if start_ms is None else start_ms
        yield TraceRequest(
            at_s=(at_ms - start_ms) / 1e3,
            input_tokens=int(row["input_length"]),
            output_tokens=int(row["output_length"]),
            blocks=tuple(int(block) for block in row.get("hash_ids", ())),
        )


def stretched(arrivals: list[TraceRequest], rate: float) -> list[float]:
    """Arrival times in seconds: as recorded, or scaled to a constant `rate` requests per second.

    Bursts keep their shape: each gap keeps its ratio to the mean of its neighbours. The drift of the recorded
    hour is removed, because the rate is chosen relative to a capacity and must not double half-way (as it
    more than does in the first 300 requests of Azure's conversations).
    """
    if not rate:
        return [arrival.at_s for arrival in arrivals]
    gaps = [later.at_s - sooner.at_s for sooner, later in itertools.pairwise(arrivals)]
    at_s, due = 0.0, [0.0]
    for index, gap in enumerate(gaps):
        near = gaps[max(0, index - AROUND) : index + AROUND + 1]
        mean = sum(near) / len(near)
        at_s += gap / mean if mean else 1.0
        due.append(at_s)
    factor = len(gaps) / rate / at_s if at_s else 0.0
    return [one * factor for one in due]


def prompt(arrival: TraceRequest, name: str, texts: Texts, divide: float) -> str:
    """The text of one request: its own, or that of its blocks, the last one truncated."""
    tokens = max(1, round(arrival.input_tokens / divide))
    if not arrival.blocks:
        return texts.make(name, tokens)
    block_tokens = max(1, round(BLOCK_TOKENS / divide))
    parts = []
    for block in arrival.blocks:
        if tokens <= 0:
            break
        parts.append(" ".join(texts.make(f"block{block}", block_tokens).split()[:tokens]))
        tokens -= block_tokens
    return " ".join(parts)


def trace_users(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    """An open loop at the trace's times; with `users`, a closed loop over the same requests."""
    if shape.trace is None:
        raise BenchError("no trace given", hint="give the file with --trace FILE")
    divide, tenants = shape.divide or 1.0, shape.tenants or 1
    arrivals = read_trace(shape.trace, shape.requests or 1)
    shots = [
        Shot(
            id=f"t{index}",
            messages=[{"role": "user", "content": prompt(arrival, f"t{index}", texts, divide)}],
            max_tokens=max(1, round(arrival.output_tokens / divide)),
            tenant=_tenant(index, tenants, shape.heavy or 1),
        )
        for index, arrival in enumerate(arrivals)
    ]
    if shape.users:
        return [User(shots=shots[index :: shape.users]) for index in range(min(shape.users, len(shots)))], []
    times = stretched(arrivals, shape.rate or 0.0)
    return [User(shots=[shot], start_s=at_s) for shot, at_s in zip(shots, times, strict=True)], []


def _tenant(index: int, tenants: int, heavy: int) -> str:
    """Tenants round robin, the first one `heavy` times as often."""
    if tenants < 2:
        return ""
    place = index % (heavy + tenants - 1)
    return f"tenant{max(0, place - heavy + 1)}"
