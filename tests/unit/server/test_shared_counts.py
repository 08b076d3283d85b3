"""What API processes share: the counts of keys, and counters that are added up."""

from __future__ import annotations

import asyncio
import os

import pytest

from stretto.server.http.concurrency import LocalKeyCounts, SharedKeyCounts
from stretto.server.operations.counters import Counters
from stretto.server.operations.siblings import add_state, added, state_of


def begun(counts, most: int, name: str = "a") -> bool:
    return asyncio.run(counts.begin(name, most)) is not None


def test_a_key_s_requests_are_counted_over_all_processes(tmp_path):
    shared = SharedKeyCounts(["a", "b"], processes=2, lock=tmp_path / "lock")
    first, second = shared.column(0), shared.column(1)
    assert [begun(first, 2), begun(second, 2), begun(second, 2)] == [True, True, False]
    assert begun(second, 1, "b")
    first.end("a", 0)
    assert begun(second, 2)


def test_a_dead_process_s_requests_no_longer_count(tmp_path):
    shared = SharedKeyCounts(["a"], processes=2, lock=tmp_path / "lock")
    pid = os.fork()
    if pid == 0:
        begun(shared.column(1), 5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert not begun(shared.column(0), 1)  # the child's count is seen here
    shared.clear(1)
    assert begun(shared.column(0), 1)


def test_one_process_counts_for_itself():
    counts = LocalKeyCounts()
    assert [begun(counts, 1), begun(counts, 1), begun(counts, 1, "b")] == [True, False, True]
    counts.end("a", 0)
    assert begun(counts, 1)


def test_counters_of_several_processes_are_added():
    one, other, whole = Counters(), Counters(), Counters()
    for counters, tokens in ((one, 3), (other, 4)):
        counters.running = 1
        counters.responses[200] += tokens
        counters.of("m").generated_tokens = tokens
        counters.of("m").first_token.observe(0.02, tokens)
        add_state(whole, state_of(counters))
    assert whole.running == 2
    assert whole.responses[200] == 7
    assert whole.of("m").generated_tokens == 7
    assert whole.of("m").first_token.count == 7
    assert whole.of("m").first_token.total == pytest.approx(0.14)


def test_statistics_are_added_deeply_and_words_are_kept():
    ours = {"calls": {"generate": 2}, "state": "up", "enabled": True}
    theirs = {"calls": {"generate": 3, "stop": 1}, "state": "up", "enabled": True}
    assert added(ours, theirs) == {"calls": {"generate": 5, "stop": 1}, "state": "up", "enabled": True}
