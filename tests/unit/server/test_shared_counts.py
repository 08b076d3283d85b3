"""What API processes share: the counts of keys, and counters that are added up."""

from __future__ import annotations

import os

import pytest

from stretto.server.http.concurrency import LocalKeyCounts, SharedKeyCounts
from stretto.server.operations.counters import Counters
from stretto.server.operations.siblings import add_state, added, state_of


def test_a_key_s_requests_are_counted_over_all_processes(tmp_path):
    shared = SharedKeyCounts(["a", "b"], processes=2, lock=tmp_path / "lock")
    first, second = shared.column(0), shared.column(1)
    assert [first.begin("a", 2), second.begin("a", 2), second.begin("a", 2)] == [True, True, False]
    assert second.begin("b", 1)
    first.end("a")
    assert second.begin("a", 2)


def test_a_dead_process_s_requests_no_longer_count(tmp_path):
    shared = SharedKeyCounts(["a"], processes=2, lock=tmp_path / "lock")
    pid = os.fork()
    if pid == 0:
        shared.column(1).begin("a", 5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert not shared.column(0).begin("a", 1)  # the child's count is seen here
    shared.clear(1)
    assert shared.column(0).begin("a", 1)


def test_one_process_counts_for_itself():
    counts = LocalKeyCounts()
    assert [counts.begin("a", 1), counts.begin("a", 1), counts.begin("b", 1)] == [True, False, True]
    counts.end("a")
    assert counts.begin("a", 1)


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
