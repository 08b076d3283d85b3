"""Must-show 5 of tensor parallelism, small: one kill. The full size: python benchmarks/tensor_parallel.py."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("torch")

from benchmarks.tensor_parallel import CONFIG, SLOTS, run


def test_a_killed_rank_costs_only_what_was_in_flight(tmp_path, capfd):
    model = tmp_path / "tiny-llama"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    report = asyncio.run(run(model, kills=1))
    assert report.problems == []
    assert report.requests == 2 * SLOTS
    assert sum(report.ends.values()) == report.requests
    assert report.replayed, "some waited when the rank died"
    assert capfd.readouterr().err.count("rank 1 of 2 was killed by SIGKILL") == 1
