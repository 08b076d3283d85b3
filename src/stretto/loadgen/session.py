"""Runs a workload against a target: count tokens, plan, send. A curve is several runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from stretto.errors import BenchError
from stretto.loadgen import fleet
from stretto.loadgen.plan import LoadPlan, Target
from stretto.loadgen.records import LoadRun
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import counter
from stretto.loadgen.words import Texts
from stretto.loadgen.workloads import make_plan

CAPACITY_REQUESTS = 64
CAPACITY_SHARE = 3  # every third request of a trace: its lengths drift as much as its rate
CAPACITY_USERS = 16


def new_run_id() -> str:
    return secrets.token_hex(4)


def prepare(workload: str, shape: Shape, target: Target, run_id: str) -> LoadPlan:
    """The plan, with text lengths counted by the server."""
    return make_plan(workload, shape, run_id=run_id, texts=Texts(run_id, counter(target)))


def measure(
    workload: str,
    shape: Shape,
    target: Target,
    *,
    run_id: str,
    workers: int = 0,
    progress: fleet.Progress | None = None,
) -> LoadRun:
    return fleet.run(prepare(workload, shape, target, run_id), target, workers=workers, progress=progress)


def capacity_per_s(
    workload: str,
    shape: Shape,
    target: Target,
    *,
    users: int,
    run_id: str,
    progress: fleet.Progress | None = None,
) -> float:
    """Requests per second with `users` concurrent users: a load of 100 %."""
    sizes = shape.resolved(workload)
    if workload not in {"steady", "trace"}:
        raise BenchError(f"{workload} has no arrival rate", hint="--load is for steady and trace")
    traced = workload == "trace"
    requests = sizes.requests if traced else min(sizes.requests or 1, CAPACITY_REQUESTS)
    closed = replace(sizes, users=users, rate=0.0, requests=requests)
    plan = prepare(workload, closed, target, f"{run_id}/capacity")
    if traced:
        some = [structs.replace(user, shots=user.shots[::CAPACITY_SHARE]) for user in plan.users]
        plan = structs.replace(plan, users=some)
    run = fleet.run(plan, target, progress=progress)
    done = [record for record in run.records if record.ok]
    if not done:
        raise BenchError("no request succeeded while measuring the capacity", hint=_first_error(run))
    return len(done) / run.duration_s


def curve(
    workload: str,
    shapes: Sequence[Shape],
    target: Target,
    *,
    run_id: str,
    workers: int = 0,
    progress: fleet.Progress | None = None,
) -> list[LoadRun]:
    """One run per shape, each with its own texts."""
    return [
        measure(workload, shape, target, run_id=f"{run_id}/{index}", workers=workers, progress=progress)
        for index, shape in enumerate(shapes)
    ]


def _first_error(run: LoadRun) -> str:
    failed = next((record for record in run.records if not record.ok), None)
    return f"{failed.error}: {failed.detail}" if failed is not None else "the plan was empty"
