"""What time slicing costs: more streams than slots, with the default setting and without slices."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.figures import failures, ours, ratio, report
from benchmarks.lab import OURS, Lab, Variant
from stretto.loadgen.bars import Bar
from stretto.loadgen.shapes import Shape

WITHOUT = "stretto, slice_tokens 0"
WORKLOADS = {
    "turns": ("turns", Shape(), Shape(turns=2)),
    "long": (
        "steady",
        Shape(users=12, requests=24, output_tokens=160),
        Shape(users=12, requests=12, output_tokens=40),
    ),
}


def slices(lab: Lab) -> tuple[dict[str, Any], list[Bar]]:
    """Twelve streams on eight slots, sliced and not: short turns, and answers of 160 tokens."""
    variants = {OURS: Variant(peer=OURS), WITHOUT: Variant(peer=OURS, flags=["--slice-tokens", "0"])}
    made: dict[str, Any] = {}
    bars = []
    for name, (workload, shape, small) in WORKLOADS.items():
        found = lab.interleaved(workload, small if lab.quick else shape, variants, slots=8)
        made[name] = report(found)
        first = ratio(found, "all", "ttft_s", "mean", peer=WITHOUT)
        tokens = ratio(found, "all", "output_tokens_per_s", peer=WITHOUT)
        bars += [
            Bar(f"slices, {name}: tok/s ÷ without slices", tokens, "≥", 0.97),
            Bar(f"slices, {name}: mean TTFT ÷ without slices", first, "≤", 1.0),
            Bar(f"slices, {name}: failures", failures(found), "≤", 0.0),
        ]
        made[name]["end_to_end_mean_s"] = ours(found, "all", "e2e_s", "mean")
    return made, bars
