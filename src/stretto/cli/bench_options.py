"""The options of `stretto bench`, and the target and workload shapes derived from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from stretto.cli.failures import UsageError
from stretto.cli.output import note, progress

if TYPE_CHECKING:
    from stretto.loadgen.plan import Target
    from stretto.loadgen.shapes import Shape

Workload = Literal["steady", "stall", "burst", "turns", "mixed", "tenants", "trace"]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the workload; defaults depend on the workload."""

    users: str = ""
    """Concurrent users. Several, e.g. 1,2,4,8, make a curve."""
    rate: str = ""
    """Arrivals per second (open loop). Several make a curve."""
    load: float = 0.0
    """Rate as a fraction of the capacity, which is measured first (steady, trace): 0.8 is 80 %."""
    requests: int | None = None
    """Total number of requests."""
    input: int | None = None
    """Tokens of each prompt."""
    output: int | None = None
    """Tokens of each answer."""
    shared: int | None = None
    """Tokens of the shared system prompt (burst), the long prompt (stall) or the first turn (turns)."""
    turns: int | None = None
    """Turns of each conversation."""
    think: float | None = None
    """Seconds between turns."""
    tenants: int | None = None
    """How many tenants share the server (tenants, trace)."""
    heavy: int | None = None
    """Load of the first tenant, as a multiple of the others'."""
    trace: Path | None = None
    """A trace: Azure's CSV or Mooncake's JSONL."""
    divide: float | None = None
    """Divide the trace's lengths by this."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """How requests are sent."""

    model: str = ""
    """Model name. Default: the server's first."""
    api: Literal["chat", "completions"] = "chat"
    """Which endpoint."""
    key: str = ""
    """API key."""
    tenant: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """API key of a tenant, as NAME=KEY; repeatable."""
    tenant_header: str = ""
    """Header with the tenant's name, for servers without keys."""
    body: str = ""
    """JSON object with fields for every request; overrides the defaults."""
    timeout: float = 600.0
    """Time-out of a request, in seconds."""
    workers: int = 0
    """Client processes; 0: chosen by the load."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Reporting options."""

    slo_ttft: float = 2.0
    """Goodput: maximum seconds to the first token …"""
    slo_itl: float = 0.2
    """… and maximum average seconds per further token."""
    json: Path | None = None
    """Write all results to this file, as JSON."""
    plot: Path | None = None
    """Write SVG plots into this directory."""
    run_id: str = ""
    """Seed of texts and arrival times. Default: random, so that no text is in a cache."""


def target_of(url: str, wire: SendOptions) -> Target:
    from stretto.loadgen.target import find_target

    try:
        body = json.loads(wire.body) if wire.body else {}
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise UsageError("--body is not a JSON object", hint="""--body '{"top_k": 1}'""")
    keys = pairs(wire.tenant, "--tenant", "NAME=KEY")
    return find_target(
        url,
        api=wire.api,
        model=wire.model,
        key=wire.key,
        tenant_keys=keys,
        tenant_header=wire.tenant_header,
        body=body,
        timeout_s=wire.timeout,
    )


def pairs(given: Sequence[str], flag: str, form: str) -> dict[str, str]:
    found = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"{flag} {item!r} is invalid", hint=f"write {flag} {form}")
        found[name] = value
    return found


def shapes_of(
    workload: str, sizes: Sizes, target: Target, run_id: str
) -> tuple[list[Shape], list[float], str]:
    """One shape per point of the curve, the points, and their unit."""
    from stretto.loadgen.shapes import Shape

    shape = Shape(
        requests=sizes.requests,
        input_tokens=sizes.input,
        output_tokens=sizes.output,
        shared_tokens=sizes.shared,
        turns=sizes.turns,
        think_s=sizes.think,
        tenants=sizes.tenants,
        heavy=sizes.heavy,
        trace=sizes.trace,
        divide=sizes.divide,
    )
    users, rates = _numbers(sizes.users, "--users"), _numbers(sizes.rate, "--rate")
    if sizes.load:
        rates = [_rate_for(workload, shape, sizes.load, users, target, run_id)]
        users = []
    if len(users) > 1 and len(rates) > 1:
        raise UsageError("one curve at a time", hint="give several --users or several --rate, not both")
    shapes = [
        replace(shape, users=int(count) if count else None, rate=rate or None)
        for count in users or [0.0]
        for rate in rates or [0.0]
    ]
    if rates and len(users) < 2:
        return shapes, rates, "requests/s"
    return shapes, users or [float(shape.resolved(workload).users or 0)], "users"


def _numbers(text: str, flag: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [-1.0]
    if any(number <= 0 for number in found):
        raise UsageError(f"{flag} {text!r} is not a positive number", hint=f"{flag} 8, or {flag} 1,2,4,8")
    return found


def _rate_for(
    workload: str, shape: Shape, load: float, users: Sequence[float], target: Target, run_id: str
) -> float:
    from stretto.loadgen.session import CAPACITY_USERS, capacity_per_s

    crowd = int(users[0]) if users else CAPACITY_USERS
    with progress(f"measuring the capacity with {crowd} users") as shown:
        full = capacity_per_s(workload, shape, target, users=crowd, run_id=run_id, progress=shown)
    note(f"capacity {full:.2f} requests/s; {load:.0%} of it is {full * load:.2f}")
    return full * load
