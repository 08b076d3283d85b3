"""Measures the curves of docs/guides/tuning.md: throughput and latency by slots, load and cache type.

    python benchmarks/tuning.py [--json benchmarks/results/tuning.json] [--plots docs/guides/tuning]
                                [--only slots …] [--check]

slots: always 16 users; n_seq_max 1, 2, 4, 8, 16.    load: 8 slots; open loop from 20 % to 120 % of capacity.
cache: 8 slots, 8 users with prompts of 1,000 tokens; f16 against q8_0. Each point has a fresh server and new
texts. Needs an idle machine. `--check`: no request failed, and eight slots serve at least 1.5 times as many
tokens as one.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stretto.errors import StrettoError
from stretto.loadgen import known_peers, plots
from stretto.loadgen.bars import Bar
from stretto.loadgen.conditions import conditions
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import serving
from stretto.loadgen.records import LoadRun
from stretto.loadgen.session import capacity_per_s, measure, new_run_id
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import find_target
from stretto.model_files import bundled
from stretto.settings.places import cache_home

LOGS = Path(__file__).resolve().parent.parent / "build" / "bench-logs"
SLOTS = (1, 2, 4, 8, 16)
LOADS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
CACHE_TYPES = ("f16", "q8_0")
GAIN_MIN = 1.5  # tokens/s of 8 slots relative to 1
WARM = Shape(users=2, requests=2, input_tokens=16, output_tokens=8)


class Curves:
    """Measures points, each on a fresh server."""

    def __init__(self, model: Path, *, threads: int, quick: bool) -> None:
        self._model = model
        self._threads = threads
        self._run_id = new_run_id()
        self.quick = quick

    def point(self, name: str, shape: Shape, *, slots: int, flags: Sequence[str] = ()) -> LoadRun:
        given = Serving(model=self._model, slots=slots, threads=self._threads)
        run_id = f"{self._run_id}/{name}"
        print(f"  {name}", file=sys.stderr, flush=True)
        with serving(known_peers.stretto(given, flags), LOGS) as url:
            target = find_target(url)
            measure("steady", WARM, target, run_id=f"{run_id}/warm")
            return measure("steady", shape, target, run_id=run_id)

    def capacity(self, shape: Shape, *, slots: int) -> float:
        given = Serving(model=self._model, slots=slots, threads=self._threads)
        with serving(known_peers.stretto(given), LOGS) as url:
            return capacity_per_s("steady", shape, find_target(url), users=16, run_id=f"{self._run_id}/full")


def slots(curves: Curves) -> tuple[list[float], list[dict[str, Any]], str]:
    """More slots serve more requests concurrently; each answer takes a little longer."""
    shape = Shape(users=16, requests=16 if curves.quick else 96)
    found = [summary(curves.point(f"slots{count}", shape, slots=count), Slo()) for count in SLOTS]
    return [float(count) for count in SLOTS], found, "n_seq_max, 16 users"


def load(curves: Curves) -> tuple[list[float], list[dict[str, Any]], str]:
    """Latency stays flat up to the knee, then the queue grows."""
    requests = 16 if curves.quick else 96
    full = curves.capacity(Shape(requests=requests), slots=8)
    found = [
        summary(curves.point(f"load{share}", Shape(requests=requests, rate=share * full), slots=8), Slo())
        for share in LOADS
    ]
    return [share * 100 for share in LOADS], found, "load, % of capacity"


def cache(curves: Curves) -> tuple[list[float], list[dict[str, Any]], str]:
    """q8_0 halves the KV cache, at some cost in speed."""
    shape = Shape(users=8, requests=8 if curves.quick else 24, input_tokens=1000)
    found = []
    for kind in CACHE_TYPES:
        flags = ["--cache-type-k", kind, "--cache-type-v", kind]
        found.append(summary(curves.point(f"cache-{kind}", shape, slots=8, flags=flags), Slo()))
    return [float(index) for index in range(len(CACHE_TYPES))], found, "0: f16, 1: q8_0"


CURVES = {"slots": slots, "load": load, "cache": cache}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--plots", type=Path, help="write SVG plots into this directory")
    parser.add_argument("--only", nargs="+", choices=list(CURVES), default=list(CURVES), metavar="CURVE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: SmolLM2-135M-Instruct as Q4_0)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar of the guide is missed")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped too
    model = chosen.model or bundled.ensure_default(cache_home())
    curves = Curves(model, threads=chosen.threads, quick=chosen.quick)
    report: dict[str, Any] = {"conditions": {**conditions(), "model": model.name, "threads": chosen.threads}}
    for name in chosen.only:
        print(f"{name}: {CURVES[name].__doc__}", flush=True)
        points, found, axis = CURVES[name](curves)
        for point, item in zip(points, found, strict=True):
            whole = item["all"]
            ttft, gap = whole["ttft_s"], whole["itl_s"]
            print(
                f"  {point:6g}: {whole['output_tokens_per_s']:7.1f} tok/s, TTFT p95 {ttft['p95']:.2f} s, "
                f"inter-token p50 {gap['p50'] * 1e3:.0f} ms, p99 {gap['p99'] * 1e3:.0f} ms",
                flush=True,
            )
        report[name] = {"axis": axis, "points": points, "runs": found}
        _draw(chosen.plots, name, points, found, axis)
        if chosen.json:
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wanted = bars(report)
    print("\n".join(bar.line() for bar in wanted))
    return 1 if chosen.check and not all(bar.held for bar in wanted) else 0


def bars(report: dict[str, Any]) -> list[Bar]:
    """The claims of the tuning guide."""
    runs = {name: [run["all"] for run in report[name]["runs"]] for name in CURVES if name in report}
    failed = sum(sum(run["errors"].values()) for found in runs.values() for run in found)
    asked = [run["requests"] for found in runs.values() for run in found]
    wanted = [
        Bar("requests that failed", failed if asked else None, "≤", 0),
        Bar("requests of the smallest run", min(asked, default=None), "≥", 1),
    ]
    if "slots" in runs:
        rates = dict(zip(SLOTS, (run["output_tokens_per_s"] for run in runs["slots"]), strict=True))
        wanted.append(Bar("tokens/s of 8 slots ÷ those of 1", rates[8] / rates[1], "≥", GAIN_MIN))
    return wanted


def _draw(
    folder: Path | None, name: str, points: list[float], found: list[dict[str, Any]], axis: str
) -> None:
    if folder is None or name == "cache":
        return
    folder.mkdir(parents=True, exist_ok=True)
    latency = plots.latency_plot(f"{name}: latency", points, found, x_label=axis)
    throughput = plots.throughput_plot(f"{name}: throughput", points, found, x_label=axis)
    (folder / f"{name}-latency.svg").write_text(latency, encoding="utf-8")
    (folder / f"{name}-throughput.svg").write_text(throughput, encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StrettoError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
