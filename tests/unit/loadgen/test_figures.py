"""Figures of runs that are written down by hand, so that every number can be said in advance."""

from __future__ import annotations

import pytest

from stretto.loadgen.fairness import fairness, jain
from stretto.loadgen.figures import Slo, figures, percentile, special, spread, summary
from stretto.loadgen.records import LoadRecord, LoadRun


def record(due: float, chunks: list[float], *, tokens: int = 0, **more) -> LoadRecord:
    fields = {"id": "r", "group": "all", "sent_s": due, "ended_s": chunks[-1] if chunks else due, **more}
    return LoadRecord(due_s=due, chunks_s=chunks, output_tokens=tokens, **fields)


def run_of(workload: str, records: list[LoadRecord], **more) -> LoadRun:
    return LoadRun(
        workload=workload,
        run_id="x",
        url="http://h:1",
        records=records,
        duration_s=10.0,
        client_cpu_s=0.001,
        workers=1,
        **more,
    )


def test_percentiles_lie_between_neighbours():
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([7.0], 0.99) == 7.0
    found = spread([float(value) for value in range(101)])
    assert (found.p50, found.p95, found.p99, found.max, found.mean) == (50.0, 95.0, 99.0, 100.0, 50.0)
    assert spread([None]) is None


def test_a_run_in_numbers():
    records = [
        record(0.0, [1.0, 1.5, 2.0], tokens=3, prompt_tokens=10, cached_tokens=4),
        record(1.0, [2.0, 5.0], tokens=4, sent_s=1.25),  # two pieces of two tokens
        record(2.0, [3.0], error="cut", ended_s=4.0),
        record(3.0, [], error="http_500", ended_s=3.5),
    ]
    found = figures(records, Slo(ttft_s=1.0, itl_s=0.6))
    assert (found.requests, found.ok, found.stopped) == (4, 2, 0)
    assert found.errors == {"cut": 1, "http_500": 1}
    assert found.duration_s == 5.0
    assert found.requests_per_s == pytest.approx(0.4)
    assert found.output_tokens == 8, "what a broken stream brought was served too"
    assert found.ttft_s.mean == 1.0, "failed requests have no part in latencies"
    assert found.itl_s.max == found.longest_gap_s == 3.0
    assert found.tpot_s.max == 1.0
    assert found.e2e_s.max == 4.0
    assert found.good_share == 0.25, "one of four: the second is too slow a token, two failed"
    assert found.goodput_per_s == pytest.approx(0.2)
    assert found.late_s == 0.25
    assert (found.prompt_tokens, found.cached_tokens) == (10, 4)


def test_ttft_counts_from_when_it_was_due():
    late = record(1.0, [3.0], sent_s=2.5)
    assert late.ttft_s == 2.0


def test_empty_input_does_not_crash():
    found = summary(run_of("steady", []), Slo())
    assert found["all"]["requests"] == 0
    assert found["fairness"] is None


def test_stall_counts_gaps_after_the_long_prompt_was_sent():
    streams = [
        record(0.0, [0.1, 2.0, 3.0, 3.5, 6.5], group="stream"),  # 1.9 before, 3.0 after
        record(0.0, [0.1, 0.2, 3.1], group="stream", error="stopped", ended_s=8.0),  # silent to the end: 4.9
    ]
    long = record(3.2, [7.0], group="long")
    found = special(run_of("stall", [*streams, long]))
    assert found["streams_longest_gap_s"] == pytest.approx(4.9)
    assert found["long_ttft_s"] == pytest.approx(3.8)


def test_urgent_requests_count_as_loaded_only_under_load():
    load = [record(1.0, [9.0], group="background", ended_s=10.0) for _ in range(4)]
    alone = [record(0.0, [0.1], group="urgent_alone")]
    during = [record(5.0, [5.4], group="urgent")]
    after = [record(11.0, [11.1], group="urgent")]
    found = special(run_of("mixed", [*load, *alone, *during, *after]))
    assert found["urgent_ttft_p95_loaded_s"] == pytest.approx(0.4)
    assert found["urgent_delay_s"] == pytest.approx(0.3)
    assert special(run_of("mixed", [*load, *alone, *after])) == {}, "nothing was measured under load"


def test_groups_are_reported_separately_without_quiet_ones():
    records = [
        record(0.0, [9.0], group="warm"),
        record(1.0, [2.0], group="first"),
        record(1.0, [4.0], group="later"),
    ]
    found = summary(run_of("turns", records, quiet=["warm"]), Slo())
    assert found["all"]["requests"] == 2
    assert found["groups"]["later"]["ttft_s"]["mean"] == 3.0
    assert set(found["groups"]) == {"first", "later"}


def test_jain():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([6.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain([0.0, 0.0]) == 0.0


def test_fairness_counts_only_while_all_tenants_wait():
    # a waits over [0, 4] and b over [2, 6]: only what arrives in [2, 4] counts.
    records = [
        record(0.0, [4.0], tenant="a"),
        record(2.0, [6.0], tenant="b"),
        record(
            0.0, [0.0, 1.0, 2.5, 3.0, 3.5, 5.0], tenant="a", tokens=12
        ),  # three pieces of two tokens count
        record(0.0, [0.0, 1.0, 3.0, 3.9, 9.0], tenant="b"),  # two of one token
    ]
    found = fairness(records)
    assert found["contended_s"] == pytest.approx(2.0)
    assert found["tokens"] == {"a": 7.0, "b": 2.0}, "a's own first token at 4.0 is the seventh"
    assert found["jain"] == pytest.approx(jain([7.0, 2.0]))
    assert fairness(records[::2]) is None, "fairness needs two tenants"


def test_a_greedy_server_is_unfair_and_an_even_one_is_not():
    def backlog(rates: dict[str, float]) -> list[LoadRecord]:
        waiting = [record(0.0, [100.0], tenant=tenant) for tenant in rates]
        served = [
            record(0.0, [index / rate for index in range(1, int(90 * rate))], tenant=tenant)
            for tenant, rate in rates.items()
        ]
        return waiting + served

    assert fairness(backlog({"a": 10.0, "b": 10.0, "c": 9.5}))["jain"] > 0.99
    assert fairness(backlog({"a": 10.0, "b": 1.0, "c": 1.0}))["jain"] < 0.5
