"""Measures Stretto against llama-server: the claims of benchmarks/README.md, in one run on one machine.

    benchmarks/peers/build_llama_server.sh       once: builds the peer from our binding's llama.cpp
    python benchmarks/compare.py --trace FILE [--json FILE] [--check] [--plots DIR] [--only steady stall …]

Every measurement starts fresh servers (same model, `-np N -c 4096×N -t 2`), pages the model in with a few
other texts, and sends new texts. Rounds are interleaved in alternating order; a ratio is taken within a
round, and the median decides. `--check` exits 1 if a bar is missed or was not measured. Needs an idle
machine: any other process delays both compute threads.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from stretto.errors import StrettoError
from stretto.loadgen import compare, plots
from stretto.loadgen.bars import Bar
from stretto.loadgen.conditions import conditions
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.peers import serving
from stretto.loadgen.session import capacity_per_s
from stretto.loadgen.shapes import Shape
from stretto.loadgen.svg import COLOURS, Chart
from stretto.loadgen.target import find_target
from stretto.model_files import bundled
from stretto.settings.places import cache_home

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lab import LLAMA_SERVER, LOGS, OURS, ROOT, THEIRS, VLLM, Lab, Summary

STEADY_REQUESTS = 6  # per user: at the start and end not all users are active
STEADY_ROUNDS = 3  # times the rounds of other claims: the two servers differ by less than
# 10 %, and so does the machine's speed from one minute to the next
TRACE_SLOTS = 16
TRACE_TRIES = 3
TRACE_DRIFT = 0.1  # relative change of the capacity during the replay
TRACE_ITL_MS = 400.0  # allows a chunk of 128 rows beside 16 streams on two cores, as `auto` would
ITL_CURVE_MS = (25, 50, 100, 200, 400)
VLLM_CPU_TTFT_S = {"burst": 1.65, "turns": 0.90}  # float32, tuned, measured earlier on a similar machine


def ratio(found: dict[str, list[Summary]], *path: str, peer: str = THEIRS) -> float | None:
    """The median of ours ÷ the peer's."""
    values = compare.ratios(found[OURS], found[peer], path)
    return statistics.median(values) if values else None


def vllm_bars(name: str, found: dict[str, list[Summary]], *path: str) -> list[Bar]:
    """A bar on vLLM's earlier time, and a ratio if it was measured in the same run."""
    workload, _, _ = name.partition(":")
    bars = [Bar(f"{name}, s (vllm-cpu's)", ours(found, *path), "≤", VLLM_CPU_TTFT_S[workload])]
    if VLLM in found:
        bars.append(Bar(f"{name} ÷ vllm-cpu", ratio(found, *path, peer=VLLM), "≤", 1.0))
    return bars


def ours(found: dict[str, list[Summary]], *path: str) -> float | None:
    values = [value for item in found[OURS] if (value := compare.value(item, path)) is not None]
    return statistics.median(values) if values else None


def failures(found: dict[str, list[Summary]]) -> float:
    return float(sum(sum(item["all"]["errors"].values()) for item in found[OURS]))


def _report(found: dict[str, list[Summary]]) -> dict[str, Any]:
    return {"rounds": found, "compared": compare.plain(compare.compared(found))}


# ── the claims ──────────────────────────────────────────────────────────────────────────────────


def steady(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Throughput at 8 users on 8 slots and 16 on 16, also against llama.cpp alone."""
    report: dict[str, Any] = {}
    bars = []
    for slots in (8, 16):
        shape = Shape(users=slots, requests=slots * (2 if lab.quick else STEADY_REQUESTS))
        rounds = 1 if lab.quick else STEADY_ROUNDS * lab.rounds
        found = lab.both("steady", shape, slots=slots, rounds=rounds)
        prompt = _prompt_tokens(found)
        bare = [_bare(lab, slots, prompt) for _ in range(rounds)]
        against = [
            item["all"]["output_tokens_per_s"] / alone for item, alone in zip(found[OURS], bare, strict=True)
        ]
        report[str(slots)] = {**_report(found), "bare_tokens_per_s": bare, "against_bare": against}
        bars += [
            Bar(
                f"steady {slots}: tok/s ÷ llama-server", ratio(found, "all", "output_tokens_per_s"), "≥", 1.0
            ),
            Bar(f"steady {slots}: tok/s ÷ bare llama_decode", statistics.median(against), "≥", 0.95),
            Bar(f"steady {slots}: failures", failures(found), "≤", 0.0),
        ]
    return report, bars


def _prompt_tokens(found: dict[str, list[Summary]]) -> int:
    whole = [item["all"] for item in found[THEIRS]]
    return round(statistics.mean(item["prompt_tokens"] / max(1, item["ok"]) for item in whole)) or 79


def _bare(lab: Lab, slots: int, prompt: int) -> float:
    command = [sys.executable, str(ROOT / "benchmarks" / "bare_loop.py"), "--model", str(lab.model)]
    sizes = {"slots": slots, "prompt": prompt, "threads": lab.threads, "rounds": 1 if lab.quick else 6}
    command += [str(part) for name, value in sizes.items() for part in (f"--{name}", value)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(answer.stdout)["output_tokens_per_s"])


def stall(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """A long prompt arrives while seven streams run."""
    found = lab.both("stall", Shape(shared_tokens=500 if lab.quick else 3000), slots=8)
    return _report(found), [
        Bar("stall: streams' longest gap, s", ours(found, "special", "streams_longest_gap_s"), "≤", 0.7),
        Bar("stall: long prompt's TTFT ÷ llama-server", ratio(found, "special", "long_ttft_s"), "≤", 1.35),
        Bar("stall: failures", failures(found), "≤", 0.0),
    ]


def itl(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """How `target_itl_ms` trades the streams' gap for the long prompt's TTFT; a curve without a bar."""
    points = []
    for target_ms in ITL_CURVE_MS[1:3] if lab.quick else ITL_CURVE_MS:
        run = lab.once(
            OURS,
            "stall",
            Shape(shared_tokens=500 if lab.quick else 3000),
            slots=8,
            run_id=f"{lab.run_id}/itl{target_ms}",
            flags=["--target-itl-ms", str(target_ms)],
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
    return _report(found), [
        Bar("burst: mean TTFT ÷ llama-server", ratio(found, *mean), "≤", 0.1),
        *vllm_bars("burst: mean TTFT", found, *mean),
        Bar("burst: failures", failures(found), "≤", 0.0),
    ]


def turns(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Twelve conversations on eight slots."""
    shape = Shape(turns=2 if lab.quick else 4)
    found = lab.both("turns", shape, slots=8, also=[VLLM] if lab.vllm else [])
    mean = ("groups", "later", "ttft_s", "mean")
    return _report(found), [
        Bar("turns: later mean TTFT ÷ llama-server", ratio(found, *mean), "≤", 0.5),
        *vllm_bars("turns: later mean TTFT", found, *mean),
        Bar("turns: failures", failures(found), "≤", 0.0),
    ]


def trace_capacity(lab: Lab, shape: Shape, flags: Sequence[str], run_id: str) -> float:
    """Requests of the trace per second that a fresh server completes."""
    with serving(lab.peer(OURS, TRACE_SLOTS, flags), LOGS) as url:
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
        run = lab.once(OURS, "trace", replay, slots=TRACE_SLOTS, run_id=run_id, flags=flags)
        after = trace_capacity(lab, shape, flags, f"{run_id}/after")
        tries.append({"capacity_before": before, "capacity_after": after, "run": summary(run, Slo())})
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
            OURS,
            "tenants",
            Shape(requests=24 if lab.quick else 96),
            slots=8,
            run_id=f"{lab.run_id}/tenants",
            flags=["--api-key-file", str(path)],
            keys=keys,
        )
    found = summary(run, Slo())
    return {"run": found}, [
        Bar("tenants: fairness (Jain)", compare.value(found, ("fairness", "jain")), "≥", 0.95),
        Bar("tenants: failures", float(sum(found["all"]["errors"].values())), "≤", 0.0),
    ]


def mixed(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Urgent requests under a background overload."""
    shape = Shape(requests=16 if lab.quick else 128)
    run = lab.once(OURS, "mixed", shape, slots=8, run_id=f"{lab.run_id}/mixed", flags=lab.strict)
    lab.draw("mixed-timeline", lambda: plots.timeline_plot(run, "urgent requests under overload"))
    found = summary(run, Slo())
    background = found["groups"]["background"]
    delay_s = compare.value(found, ("special", "urgent_delay_s"))
    return {"run": found}, [
        Bar("mixed: urgent TTFT p95 later, ms", delay_s and delay_s * 1e3, "≤", 2 * lab.target_itl_ms),
        Bar("mixed: background completed", background["ok"] / background["requests"], "≥", 1.0),
        Bar("mixed: failures", float(sum(found["all"]["errors"].values())), "≤", 0.0),
    ]


CLAIMS = {
    "steady": steady,
    "stall": stall,
    "itl": itl,
    "burst": burst,
    "turns": turns,
    "trace": trace,
    "tenants": tenants,
    "mixed": mixed,
}


# ── the run ─────────────────────────────────────────────────────────────────────────────────────


def circumstances(lab: Lab) -> dict[str, Any]:
    """The conditions needed to repeat the run, without local paths."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        **conditions(),
        "commit": commit.stdout.strip() or "none",
        "model": lab.model.name,
        "model_sha256": bundled.file_sha256(lab.model),
        "threads": lab.threads,
        "target_itl_ms": lab.target_itl_ms,
        "flash_attention": lab.flash_attention,
        "rounds": lab.rounds,
        "quick": lab.quick,
        "run_id": lab.run_id,
        "command": " ".join(["python", "benchmarks/compare.py", *(Path(a).name for a in sys.argv[1:])]),
    }


def run_claims(lab: Lab, names: Sequence[str], path: Path | None, *, keep: bool = False) -> list[Bar]:
    """Measures and prints; the file is written after every claim, so that an aborted run keeps its results.

    `keep`: other claims of the file are kept; new measurements record their own date and commit.
    """
    made = circumstances(lab)
    report: dict[str, Any] = {"conditions": made, "claims": {}}
    if keep and path is not None and path.exists():
        report = msgspec.json.decode(path.read_bytes())
    again = {"conditions": made} if report["conditions"] is not made else {}
    bars: list[Bar] = []
    for name in names:
        print(f"{name}: {CLAIMS[name].__doc__}", flush=True)
        figures, found = CLAIMS[name](lab)
        bars += found
        for bar in found:
            print(bar.line(), flush=True)
        held = [{**asdict(bar), "held": bar.held} for bar in found]
        report["claims"][name] = {**figures, "bars": held, **again}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed or was not measured")
    parser.add_argument("--plots", type=Path, help="write SVG plots into this directory")
    parser.add_argument("--only", nargs="+", choices=list(CLAIMS), default=list(CLAIMS), metavar="CLAIM")
    parser.add_argument("--keep", action="store_true", help="keep the other claims of the --json file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: SmolLM2-135M-Instruct as Q4_0)")
    parser.add_argument("--trace", type=Path, help="Azure's conversation trace, a CSV")
    parser.add_argument("--target-itl-ms", type=float, default=100.0, help="for mixed (default: 100)")
    parser.add_argument("--flash-attention", default="auto", help="ours: auto, on, off or long")
    parser.add_argument("--llama-server", type=Path, default=LLAMA_SERVER)
    parser.add_argument("--serial", type=Path, metavar="PYTHON", help="also measure its llama_cpp.server")
    parser.add_argument(
        "--vllm", type=Path, metavar="PYTHON", help="also measure burst and turns on its vLLM"
    )
    parser.add_argument("--vllm-model", type=Path, metavar="DIR", help="the model's float32 weights for it")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped too
    needs_peer = {"steady", "stall", "burst", "turns"} & set(chosen.only)
    if needs_peer and not chosen.llama_server.exists():
        parser.error("llama-server is not built: run benchmarks/peers/build_llama_server.sh")
    lab = Lab(
        model=chosen.model or bundled.ensure_default(cache_home()),
        rounds=1 if chosen.quick else chosen.rounds,
        threads=chosen.threads,
        target_itl_ms=chosen.target_itl_ms,
        flash_attention=chosen.flash_attention,
        quick=chosen.quick,
        trace=chosen.trace,
        plots=chosen.plots,
        llama_server=chosen.llama_server,
        serial_python=chosen.serial,
        vllm=(chosen.vllm, chosen.vllm_model) if chosen.vllm and chosen.vllm_model else None,
    )
    bars = run_claims(lab, chosen.only, chosen.json, keep=chosen.keep)
    missed = [bar for bar in bars if not bar.held]
    print(f"{len(bars) - len(missed)} of {len(bars)} bars hold")
    return 1 if missed and chosen.check else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StrettoError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
