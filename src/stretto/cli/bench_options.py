"""The options of `stretto bench`, and what follows from them: a target, and one shape a point of a curve."""

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
    """What the workload is made of; what is not given is the workload's own default."""

    users: str = ""
    """Users at the same time. Several, as 1,2,4,8, make a curve."""
    rate: str = ""
    """Arrivals a second: an open loop. Several make a curve."""
    load: float = 0.0
    """Rate as a share of the capacity, which is measured first (steady, trace): 0.8 is 80 %."""
    requests: int | None = None
    """Requests in all."""
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
    """How many times the others' load the first tenant sends."""
    trace: Path | None = None
    """A trace: Azure's CSV or Mooncake's JSONL."""
    divide: float | None = None
    """Lengths of the trace ÷ this."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How requests are sent."""

    model: str = ""
    """The model to ask for. Default: the server's first."""
    api: Literal["chat", "completions"] = "chat"
    """Which endpoint."""
    key: str = ""
    """API key."""
    tenant: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A tenant's API key, as NAME=KEY; may be given several times."""
    tenant_header: str = ""
    """A header that carries the tenant's name, for servers without keys."""
    body: str = ""
    """A JSON object whose fields go into every request, over ours."""
    timeout: float = 600.0
    """Seconds after which a request is given up."""
    workers: int = 0
    """Client processes; 0: as few as the load needs."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What is said of it."""

    slo_ttft: float = 2.0
    """A request is good when its first token came within so many seconds …"""
    slo_itl: float = 0.2
    """… and each further one took no more than so many on average."""
    json: Path | None = None
    """Write everything to this file."""
    plot: Path | None = None
    """Write SVG plots into this directory."""
    run_id: str = ""
    """Texts and arrival times follow from it. Default: a new one, so that no text was ever sent before."""


def target_of(url: str, wire: Wire) -> Target:
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
            raise UsageError(f"{flag} {item!r} makes no sense", hint=f"write {flag} {form}")
        found[name] = value
    return found


def shapes_of(
    workload: str, sizes: Sizes, target: Target, run_id: str
) -> tuple[list[Shape], list[float], str]:
    """One shape for each point of the curve, the points, and what they count."""
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
        raise UsageError(f"{flag} {text!r} is no positive number", hint=f"{flag} 8, or {flag} 1,2,4,8")
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
