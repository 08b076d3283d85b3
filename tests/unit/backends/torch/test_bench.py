"""The GPU benchmarks, on a CPU and a toy: that their commands run and their figures add up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[4] / "bench" / "gpu"
TOY = ["--model", "tiny", "--device", "cpu", "--threads", "1"]


def run(script: str, target: Path, *flags: str) -> dict:
    command = [sys.executable, str(BENCH / script), *TOY, "--json", str(target), "--check", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text())


def test_throughput(tmp_path):
    flags = ("--requests", "12", "--slots", "4", "--low", "5", "--high", "20", "--rows-max", "128")
    found = run("throughput.py", tmp_path / "out.json", *flags)
    assert 12 * 5 <= found["output_tokens"] <= 12 * 20
    assert found["output_tokens_per_s"] == pytest.approx(found["output_tokens"] / found["seconds"], rel=0.01)
    assert found["cached_tokens"] == 0
    assert found["conditions"]["commit"]


def test_latency(tmp_path):
    flags = ("--batches", "1,3", "--context", "40", "--outputs", "8", "--passes", "1")
    found = run("latency.py", tmp_path / "out.json", *flags)
    assert set(found["batches"]) == {"1", "3"}
    assert found["growth"]["1"] == 1.0
