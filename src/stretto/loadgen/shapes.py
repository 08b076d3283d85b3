"""The numbers of a workload: what may be set, and what each workload uses when nothing is said."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from stretto.errors import BenchError

WORKLOADS = {
    "steady": "users who ask one thing after the other; with --rate, arrivals at random times",
    "stall": "a long prompt arrives while other streams run: how long do they freeze?",
    "burst": "requests that share a long system prompt arrive together, after one has warmed it",
    "turns": "conversations of several turns, more of them than slots",
    "mixed": "urgent requests under a background overload, first alone for comparison",
    "tenants": "one tenant sends ten times the others' load: who is served?",
    "trace": "a recorded trace: Azure's CSV, or Mooncake's JSONL with its shared prefixes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a workload, lengths in tokens. None: the workload's own default."""

    users: int | None = None
    requests: int | None = None  # in all
    input_tokens: int | None = None
    output_tokens: int | None = None
    shared_tokens: int | None = None  # system prompt of burst; the long prompt of stall
    turns: int | None = None
    think_s: float | None = None
    rate: float | None = None  # arrivals a second; 0 is a closed loop
    tenants: int | None = None
    heavy: int | None = None  # how many times the others' load the first tenant sends
    trace: Path | None = None
    divide: float | None = None  # lengths of a trace ÷ this

    def resolved(self, workload: str) -> Shape:
        """With the workload's defaults in place of None. What a workload does not know is refused."""
        if workload not in DEFAULTS:
            raise BenchError(f"there is no workload {workload!r}", hint=f"choose from {', '.join(WORKLOADS)}")
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
