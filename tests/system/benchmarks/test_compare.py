"""The bars of `benchmarks/compare.py`, and the bare loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.compare import CLAIMS, failures, ours, ratio
from stretto.loadgen.bars import Bar
from stretto.testing import tiny_models

ROOT = Path(__file__).resolve().parents[3]


def summaries(*rates: float, errors: int = 0) -> list[dict]:
    return [{"all": {"output_tokens_per_s": rate, "errors": {"cut": errors}}} for rate in rates]


def test_a_bar_holds_at_its_bound():
    assert Bar("x", 1.0, "≥", 1.0).held
    assert not Bar("x", 0.99, "≥", 1.0).held
    assert Bar("x", 0.7, "≤", 0.7).held
    assert not Bar("x", 0.71, "≤", 0.7).held
    assert not Bar("x", None, "≤", 0.7).held, "an unmeasured figure does not hold"
    assert "not measured" in Bar("x", None, "≤", 0.7).line()
    assert Bar("x", 1.5, "≤", 0.7).line().startswith("  MISS")


def test_a_ratio_is_the_median_of_the_rounds():
    found = {"stretto": summaries(10.0, 30.0, 20.0), "llama-server": summaries(10.0, 10.0, 40.0)}
    assert ratio(found, "all", "output_tokens_per_s") == 1.0
    assert ours(found, "all", "output_tokens_per_s") == 20.0
    assert ours(found, "all", "nothing") is None
    assert failures({"stretto": summaries(1.0, 2.0, errors=3)}) == 6.0


def test_every_workload_has_a_docstring():
    assert all(claim.__doc__ for claim in CLAIMS.values())
    assert list(CLAIMS) == ["steady", "stall", "itl", "burst", "turns", "trace", "tenants", "mixed"]


def test_a_missing_peer_is_named_in_the_error():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "compare.py"),
        "--only",
        "burst",
        "--llama-server",
        "none",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "build_llama_server.sh" in answer.stderr


def test_the_bare_loop_counts_what_it_decodes():
    model = tiny_models.make("dense")
    sizes = ["--slots", "2", "--prompt", "9", "--output", "4", "--rounds", "1", "--threads", "1"]
    command = [sys.executable, str(ROOT / "benchmarks" / "bare_loop.py"), "--model", str(model), *sizes]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["output_tokens_per_s"] > 0
    assert (found["slots"], found["prompt"], found["output"]) == (2, 9, 4)
