"""The seeds' log messages of a running server: in the log and in the metrics, though no page watches."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stretto.telemetry import logs
from tests.server.operations.in_memory import simulated
from tests.server.operations.serving import served
from tests.server.operations.test_operations import until

SLOTS = {"n_seq_max": 2, "cache": "incremental", "cache_slot_timeout": 0.3, "simulated_tick_ms": 5}


def test_a_preemption_is_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    logs.set_up(json_lines=True, level="debug")
    try:
        with served(simulated(**SLOTS)) as running, ThreadPoolExecutor() as pool:

            def ask(prompt: str, max_tokens: int) -> Any:
                body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
                return running.client().post("/v1/completions", json=body)

            long = [pool.submit(ask, f"{letter}-the-secret" * 3, 600) for letter in "ab"]
            until(lambda: running.client().get("/slots").json()[1:] != [])
            until(lambda: all(s["state"] == "generating" for s in running.client().get("/slots").json()))
            assert ask("c-the-secret", 4).status_code == 200
            assert [reply.result().status_code for reply in long] == [200, 200]  # it was resumed
            text = running.client().get("/metrics").text
    finally:
        logs.reset()
    out = capfd.readouterr().err
    lines = [json.loads(line) for line in out.splitlines()]
    events = [line for line in lines if line.get("logger") == "stretto.events"]
    order = [line["event"] for line in events if line["event"].startswith("preempt")]
    assert order == ["preempting-slot", "preempted by queued request"]
    for line in events:
        assert line["model"] == "simulated"
    victim = next(line for line in events if line["event"] == "preempted by queued request")
    assert (victim["level"], victim["waited_ms"] >= 300, victim["slot"] in (0, 1)) == ("info", True, True)
    access = {line["stream_id"] for line in lines if line["event"] == "request" and "stream_id" in line}
    assert victim["request_id"] in access
    assert 'stretto_events_total{event="preempting-slot",model="simulated"} 1.0' in text
    assert "the-secret" not in out
