"""Claims of Stretto alone: a recorded trace, tenants, urgent requests."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import LOGS, OURS, Lab, Variant
from stretto.loadgen import compare, plots
from stretto.loadgen.bars import Bar
from stretto.loadgen.peers import serving
from stretto.loadgen.session import capacity_per_s
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import find_target

TRACE_SLOTS = 16
TRACE_TRIES = 3
TRACE_DRIFT = 0.1  # relative change of the capacity during the replay
TRACE_ITL_MS = 400.0  # allows a chunk of 128 rows beside 16 streams on two cores, as `auto` would


def trace_capacity(lab: Lab, shape: Shape, flags: Sequence[str], run_id: str) -> float:
    """Requests of the trace per second that a fresh server completes."""
    with serving(lab.peer(Variant(peer=OURS, flags=flags), TRACE_SLOTS), LOGS) as url:
        return capacity_per_s("trace", shape, find_target(url), users=2 * TRACE_SLOTS, run_id=run_id)


def trace(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """The first 300 requests of a trace at 80 % of the capacity, ours alone."""
    names = ("trace: failures", "trace: TTFT p95, s", "trace: inter-token p99, ms")
    itl_bar_ms = 2 * TRACE_ITL_MS
    flags = ["--target-itl-ms", f"{TRACE_ITL_MS:g}"]
    if lab.trace is None:
        print("  trace: no --trace FILE given", file=sys.stderr)
        bounds = (0.0, 2.0, itl_bar_ms)
        return {}, [Bar(name, None, "≤", bound) for name, bound in zip(names, bounds, strict=True)]
    shape = Shape(trace=lab.trace, requests=24 if lab.quick else 300)
    tries: list[dict[str, Any]] = []  # if the machine's speed changed meanwhile, the load was not 80 %
    for number in range(TRACE_TRIES):
        run_id = f"{lab.run_id}/trace{number}"
        before = trace_capacity(lab, shape, flags, f"{run_id}/before")
        replay = Shape(trace=lab.trace, requests=shape.requests, rate=0.8 * before)
        run = lab.once(Variant(peer=OURS, flags=flags), "trace", replay, slots=TRACE_SLOTS, run_id=run_id)
        after = trace_capacity(lab, shape, flags, f"{run_id}/after")
        tries.append({"capacity_before": before, "capacity_after": after, "run": lab.summary(run)})
        if lab.quick or abs(after / before - 1.0) <= TRACE_DRIFT:
            break
        print(f"  trace: the capacity drifted from {before:.2f} to {after:.2f} requests/s", file=sys.stderr)
    lab.draw("trace-timeline", lambda: plots.timeline_plot(run, "trace at 80 % of capacity"))
    found = tries[-1]["run"]
    p99_s = compare.value(found, ("all", "itl_s", "p99"))
    return {"tries": tries, "run": found}, [
        Bar(names[0], float(sum(found["all"]["errors"].values())), "≤", 0.0),
        Bar(names[1], compare.value(found, ("all", "ttft_s", "p95")), "≤", 2.0),
        Bar(names[2], None if p99_s is None else p99_s * 1e3, "≤", itl_bar_ms),
    ]


def tenants(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """One tenant sends ten times the load of the others, each with its own key."""
    keys = {f"tenant{index}": f"bench-{secrets.token_hex(8)}" for index in range(3)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.yaml"
        path.touch(mode=0o600)
        entries = [{"key": key, "name": name, "tenant": name} for name, key in keys.items()]
        path.write_text(f"keys: {json.dumps(entries)}\n", encoding="utf-8")  # JSON is YAML
        run = lab.once(
            Variant(peer=OURS, flags=["--api-key-file", str(path)]),
            "tenants",
            Shape(requests=24 if lab.quick else 96),
            slots=8,
            run_id=f"{lab.run_id}/tenants",
            keys=keys,
        )
    found = lab.summary(run)
    return {"run": found}, [
        Bar("tenants: fairness (Jain)", compare.value(found, ("fairness", "jain")), "≥", 0.95),
        Bar("tenants: failures", float(sum(found["all"]["errors"].values())), "≤", 0.0),
    ]


def mixed(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Urgent requests under a background overload."""
    shape = Shape(requests=16 if lab.quick else 128)
    variant = Variant(peer=OURS, flags=lab.strict)
    run = lab.once(variant, "mixed", shape, slots=8, run_id=f"{lab.run_id}/mixed")
    lab.draw("mixed-timeline", lambda: plots.timeline_plot(run, "urgent requests under overload"))
    found = lab.summary(run)
    background = found["groups"]["background"]
    delay_s = compare.value(found, ("special", "urgent_delay_s"))
    return {"run": found}, [
        Bar("mixed: urgent TTFT p95 later, ms", delay_s and delay_s * 1e3, "≤", 2 * lab.target_itl_ms),
        Bar("mixed: background completed", background["ok"] / background["requests"], "≥", 1.0),
        Bar("mixed: failures", float(sum(found["all"]["errors"].values())), "≤", 0.0),
    ]
