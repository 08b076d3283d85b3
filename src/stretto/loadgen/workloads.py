"""Workloads as plans: the requests of each user and their times. Deterministic for a shape and run id.

Groups name parts that are reported separately, e.g. the streams and the long prompt of `stall`.
"""

from __future__ import annotations

from msgspec import structs

from stretto.loadgen.plan import Gate, LoadPlan, Shot, User
from stretto.loadgen.shapes import Shape
from stretto.loadgen.traces import trace_users
from stretto.loadgen.words import Texts

PROBES = 8  # urgent requests sent alone, before the overload of `mixed`
STREAM_LEAD = 16  # chunks that each stream of `stall` has received when the long prompt arrives
STALL_OUTPUT = 16


def make_plan(workload: str, shape: Shape, *, run_id: str, texts: Texts) -> LoadPlan:
    """The plan of a workload with these sizes."""
    sizes = shape.resolved(workload)
    users, quiet = _MAKERS[workload](sizes, texts)
    return LoadPlan(workload=workload, run_id=run_id, users=users, shape=sizes.as_dict(), quiet=quiet)


def ask(text: str, system: str = "") -> list[dict[str, str]]:
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": text}]


def _steady(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    users, requests = shape.users or 1, shape.requests or 1
    shots = [_plain(texts, f"s{index}", shape) for index in range(requests)]
    if shape.rate:
        return arrivals(shots, shape.rate, texts), []
    return [User(shots=shots[index::users]) for index in range(min(users, requests))], []


def arrivals(shots: list[Shot], rate: float, texts: Texts) -> list[User]:
    """An open loop: requests with exponential gaps."""
    drawn = texts.dice("arrivals")
    at_s, users = 0.0, []
    for shot in shots:
        users.append(User(shots=[shot], start_s=at_s))
        at_s += drawn.expovariate(rate)
    return users


def _plain(
    texts: Texts, name: str, shape: Shape, *, group: str = "all", tenant: str = "", priority: str = ""
) -> Shot:
    return Shot(
        id=name,
        messages=ask(texts.make(name, shape.input_tokens or 1)),
        max_tokens=shape.output_tokens or 1,
        group=group,
        tenant=tenant,
        priority=priority,
    )


def _stall(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    streams = shape.users or 1
    arrived = Gate(group="stream", requests=streams, tokens=STREAM_LEAD)
    over = Gate(group="long", then_s=0.5)
    running = [
        User(shots=[_plain(texts, f"stream{index}", shape, group="stream")], stop=over)
        for index in range(streams)
    ]
    text = texts.make("long", shape.shared_tokens or 1)
    shot = Shot(id="long", messages=ask(text), max_tokens=STALL_OUTPUT, group="long")
    return [*running, User(shots=[shot], begin=arrived)], []


def _burst(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    system = texts.make("system", shape.shared_tokens or 1)

    def shot(name: str, group: str) -> Shot:
        messages = ask(texts.make(name, shape.input_tokens or 1), system)
        return Shot(id=name, messages=messages, max_tokens=shape.output_tokens or 1, group=group)

    warmed = Gate(group="warm", then_s=0.2)
    together = [
        User(shots=[shot(f"burst{index}", "burst")], begin=warmed) for index in range(shape.users or 1)
    ]
    return [User(shots=[shot("warm", "warm")]), *together], ["warm"]


def _turns(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    def turn(user: int, index: int) -> Shot:
        name = f"u{user}t{index}"
        tokens = (shape.input_tokens if index else shape.shared_tokens) or 1
        return Shot(
            id=name,
            messages=ask(texts.make(name, tokens)),
            max_tokens=shape.output_tokens or 1,
            group="later" if index else "first",
            think_s=(shape.think_s or 0.0) if index else 0.0,
        )

    return [
        User(shots=[turn(user, index) for index in range(shape.turns or 1)], converses=True)
        for user in range(shape.users or 1)
    ], []


def _mixed(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    """An urgent user alone, then together with background tenants in a closed loop.

    The urgent user pauses for 1/rate seconds on average and then sends one request, so that urgent requests
    never wait for each other.
    """
    pauses = texts.dice("arrivals")

    def urgent(name: str, group: str) -> Shot:
        shot = _plain(texts, name, shape, group=group, tenant="urgent", priority="urgent")
        return structs.replace(shot, think_s=pauses.expovariate(shape.rate or 1.0))

    def background(index: int) -> Shot:
        tenant = f"tenant{index % (shape.tenants or 1)}"
        return _plain(texts, f"b{index}", shape, group="background", tenant=tenant, priority="background")

    alone = User(shots=[urgent(f"alone{index}", "urgent_alone") for index in range(PROBES)])
    begin = Gate(group="urgent_alone", requests=PROBES)
    requests = shape.requests or 1
    crowd = min(shape.users or 1, requests)
    load = [background(index) for index in range(requests)]
    busy = [User(shots=load[index::crowd], begin=begin) for index in range(crowd)]
    among = [urgent(f"urgent{index}", "urgent") for index in range(max(PROBES, requests))]
    over = Gate(group="background", requests=requests)
    loaded = Gate(group="background", requests=crowd // 2 or 1, tokens=1)
    return [alone, *busy, User(shots=among, begin=loaded, until=over)], []


def _tenants(shape: Shape, texts: Texts) -> tuple[list[User], list[str]]:
    """Each light tenant has `users` users, the heavy one `heavy` times as many; all in closed loops.

    The heavy tenant is stopped once a light one is done.
    """
    users, tenants, heavy = shape.users or 1, shape.tenants or 2, shape.heavy or 1
    rounds = max(1, (shape.requests or 1) // (users * tenants))
    over = Gate(group="tenant1", requests=users * rounds)
    found = []
    for user in range(users * heavy):  # alternate between tenants, so that none is favoured by order
        for tenant in range(tenants):
            if tenant and user >= users:
                continue
            name = f"tenant{tenant}"
            shots = [
                _plain(texts, f"{name}u{user}r{index}", shape, group=name, tenant=name)
                for index in range(rounds)
            ]
            found.append(User(shots=shots, stop=None if tenant else over))
    return found, []


_MAKERS = {
    "steady": _steady,
    "stall": _stall,
    "burst": _burst,
    "turns": _turns,
    "mixed": _mixed,
    "tenants": _tenants,
    "trace": trace_users,
}
