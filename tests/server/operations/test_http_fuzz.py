"""A short run of the HTTP fuzzer. The whole one: python benchmarks/fuzz_http.py --check."""

from __future__ import annotations

from benchmarks.fuzz_http import FLAGS, measure
from benchmarks.server_process import ServerProcess


def test_fuzzed_requests_are_answered_or_closed_and_a_canary_is_served() -> None:
    with ServerProcess(*FLAGS) as server:
        found = measure(server, count=600, seed=3)
        assert not [line for line in server.lines if "Traceback" in line]
    assert not found["faults"], found["faults"]
    assert sum(found["outcomes"].values()) == 600
    assert found["canary"]["calls"] > 1
    assert server.process.returncode == 0
