"""The GPU benchmarks on a CPU with a toy model: the commands run and the figures are consistent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[4] / "benchmarks" / "gpu"
TOY = ["--model", "tiny", "--device", "cpu", "--threads", "1"]


def run(script: str, target: Path, *flags: str) -> dict:
    done = _run(script, target, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text())


def _run(script: str, target: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / script), *TOY, "--json", str(target), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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


def test_speculation(tmp_path):
    flags = ("--streams", "1,3", "--acceptance", "0,80", "--outputs", "64", "--rounds", "1")
    found = run("speculation.py", tmp_path / "out.json", *flags)["streams"]
    assert set(found) == {"1", "3"}
    for streams in found.values():
        assert streams["off"]["drafted"] == 0
        assert streams["0"]["accepted"] == 0
        assert streams["80"]["drafted"] >= streams["80"]["accepted"] > 0
        assert streams["off"]["ratio"] == 1.0


def test_a_draft_model(tmp_path):
    flags = (
        "--streams",
        "2",
        "--acceptance",
        "100",
        "--outputs",
        "64",
        "--rounds",
        "1",
        "--draft-model",
        "tiny",
    )
    found = run("speculation.py", tmp_path / "out.json", *flags)["streams"]["2"]
    assert found["off"]["drafted"] == 0
    assert found["100"]["accepted"] == found["100"]["drafted"]


def test_a_check_of_a_model_without_a_bar_fails(tmp_path):
    """The toy model has no bar, so --check must not pass."""
    flags = ("--batches", "1", "--context", "40", "--outputs", "4", "--passes", "1", "--check")
    done = _run("latency.py", tmp_path / "out.json", *flags)
    assert done.returncode == 1
    assert "none was measured" in done.stderr


def test_perplexity(tmp_path):
    """A random model: FP8 changes its perplexity, and what does is reported with its error."""
    from stretto.testing import tiny_models

    target = tmp_path / "out.json"
    flags = ["--tokens", "600", "--json", str(target)]
    command = [sys.executable, str(BENCH / "perplexity.py"), str(tiny_models.make("dense")), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert found["tokens"] == 600
    for name in ("fp8 kv", "fp8 weights", "fp8 weights and kv"):
        part = found[name]
        assert part["perplexity"] / found["perplexity"] == pytest.approx(1 + part["increase"], rel=1e-4)
        assert part["increase_error"] > 0
        assert 0 < part["greedy_agreement"] <= 1
        assert (name in found["missed"]) == (part["increase"] > 0.01)
