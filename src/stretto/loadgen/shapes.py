"""The sizes of a workload: what can be set, and each workload's defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from stretto.errors import BenchError

WORKLOADS = {
    "steady": "users that send one request after the other; with --rate, random arrivals",
    "stall": "a long prompt arrives while other streams run: how long do they stall?",
    "burst": "requests that share a long, cached system prompt arrive together",
    "turns": "conversations of several turns, more of them than slots",
    "mixed": "urgent requests under a background overload, first alone for comparison",
    "tenants": "one tenant sends ten times the others' load: are the others served?",
    "trace": "a recorded trace: Azure's CSV, or Mooncake's JSONL with its shared prefixes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a workload, lengths in tokens. None: the workload's own default."""

    users: int | None = None
    requests: int | None = None  # total
    input_tokens: int | None = None
    output_tokens: int | None = None
    shared_tokens: int | None = None  # system prompt of burst; the long prompt of stall
    turns: int | None = None
    think_s: float | None = None
    rate: float | None = None  # arrivals per second; 0: closed loop
    tenants: int | None = None
    heavy: int | None = None  # load of the first tenant, as a multiple of the others'
    trace: Path | None = None
    divide: float | None = None  # divisor of a trace's lengths

    def resolved(self, workload: str) -> Shape:
        """Fill in the workload's defaults. Raises for sizes that the workload does not use."""
        if workload not in DEFAULTS:
            raise BenchError(f"unknown workload {workload!r}", hint=f"choose from {', '.join(WORKLOADS)}")
        known = DEFAULTS[workload]
        given = {name: value for name, value in asdict(self).items() if value is not None}
        strange = [name for name in given if getattr(known, name) is None and name != "trace"]
        if strange or ("trace" in given and workload != "trace"):
            name = (strange or ["trace"])[0].replace("_", "-")
            raise BenchError(f"{workload} has no --{name}", hint=f"it has {', '.join(_flags(known))}")
        return replace(known, **given)

    def as_dict(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | ({"trace": self.trace.name} if self.trace else {})


def _flags(shape: Shape) -> list[str]:
    names = [field.name for field in fields(shape) if getattr(shape, field.name) is not None]
    return [f"--{name.replace('_', '-')}" for name in names]


DEFAULTS = {
    "steady": Shape(users=8, requests=48, input_tokens=48, output_tokens=48, rate=0.0),
    "stall": Shape(users=7, input_tokens=48, output_tokens=1024, shared_tokens=3000),
    "burst": Shape(users=8, input_tokens=32, output_tokens=32, shared_tokens=1000),
    "turns": Shape(users=12, turns=4, input_tokens=48, output_tokens=24, shared_tokens=256, think_s=0.0),
    "mixed": Shape(users=16, requests=64, input_tokens=48, output_tokens=48, rate=2.0, tenants=2),
    "tenants": Shape(users=8, requests=96, input_tokens=48, output_tokens=48, tenants=3, heavy=10),
    "trace": Shape(requests=300, rate=0.0, divide=8.0, tenants=1, heavy=1, users=0),
}
