"""The load generator against our own server: a tiny model, real processes, real sockets."""

from __future__ import annotations

import json
import os

import pytest

from stretto.loadgen import known_peers
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import serving
from stretto.loadgen.session import measure
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import counter, find_target
from stretto.testing import tiny_models


@pytest.mark.slow
def test_all_request_fields_are_accepted_and_all_figures_are_returned(tmp_path):
    """Keys, tenants, priorities and our own fields, which `benchmarks/compare.py` relies on."""
    keys = {name: f"key-of-{name}" for name in ("urgent", "tenant0", "tenant1")}
    file = tmp_path / "keys.yaml"
    file.touch(mode=0o600)
    entries = [{"key": key, "name": name, "tenant": name} for name, key in keys.items()]
    file.write_text(f"keys: {json.dumps(entries)}\n", encoding="utf-8")
    given = Serving(model=tiny_models.make("dense"), slots=4, window=1024, threads=1)
    flags = ["--api-key-file", str(file), "--target-itl-ms", "50"]
    env = {**os.environ, "STRETTO_CACHE_DIR": str(tmp_path / "cache")}
    with serving(known_peers.stretto(given, flags), tmp_path / "logs", env=env) as url:
        target = find_target(url, tenant_keys=keys)
        count = counter(target)
        assert count is not None
        assert count("one two three") >= 3
        run = measure(
            "mixed",
            Shape(users=4, requests=8, input_tokens=16, output_tokens=12, rate=10.0),
            target,
            run_id="ours",
        )
        talk = measure(
            "turns",
            Shape(users=2, turns=2, shared_tokens=120, input_tokens=8, output_tokens=4),
            target,
            run_id="talk",
        )
    found = summary(run, Slo())
    assert found["all"]["errors"] == {}
    assert found["all"]["ok"] == found["all"]["requests"] >= 16
    assert {record.tokens for record in run.records} == {12}, "end of text is ignored"
    assert found["groups"]["background"]["ok"] == 8
    assert found["fairness"]["tenants"] == ["tenant0", "tenant1"]
    later = [record for record in talk.records if record.group == "later"]
    assert later
    assert all(record.ok for record in talk.records)
    assert all(record.cached_tokens > 100 for record in later), "the previous turn was cached"
