"""The batcher over time: aborts, pauses, deadlines, its target size, and what it reports."""

from __future__ import annotations

import pytest

from stretto.rpc.messages import GenerateParams
from tests.unit.client.desk import MS, Desk, names


def test_an_abort_before_dispatch_takes_it_out():
    desk = Desk()
    first, second = desk.add(), desk.add()
    assert desk.batcher.abort(first)
    assert not desk.batcher.abort(first)
    (call,) = desk.due()
    assert names(call) == [second]
    assert not desk.batcher.abort(second)  # sent: the caller must cancel it in the worker


def test_an_abort_between_dispatch_and_sending_is_seen():
    desk = Desk()
    first, second = desk.add(), desk.add()
    (call,) = desk.batcher.due(desk.now_s)
    assert desk.batcher.abort(first)
    assert [entry.params.stream_id for entry in desk.batcher.seal(call, desk.now_s)] == [second]
    (alone,) = [desk.add()]
    desk.batcher.answered(call, desk.now_s)
    desk.now_s += 1.0
    (call,) = desk.batcher.due(desk.now_s)
    desk.batcher.abort(alone)
    assert desk.batcher.seal(call, desk.now_s) == []
    assert desk.batcher.stats()["calls_in_flight"] == 0


def test_a_pause_holds_the_offender_only_and_no_request_longer_than_once():
    desk = Desk()
    desk.batcher.pause("slow", desk.now_s)
    desk.add(tenant="slow")
    other = desk.add(tenant="other")
    (call,) = desk.due()
    assert names(call) == [other]
    assert desk.wake_ms() == pytest.approx(20.0)
    for ms in (10.0, 19.0):  # it goes on being slow
        desk.at(ms)
        desk.batcher.pause("slow", desk.now_s)
    desk.at(20.1)
    assert desk.sizes() == [1]


def test_requests_without_a_tenant_pause_at_most_a_tenth_of_the_time():
    desk = Desk()
    desk.batcher.pause("", desk.now_s)
    desk.add()
    assert desk.sizes() == []
    assert desk.wake_ms() == pytest.approx(20.0)
    desk.at(20.1)
    assert desk.sizes() == [1]
    for ms in (25.0, 100.0, 199.0):  # readers that stay slow do not stop the others for long
        desk.at(ms)
        desk.batcher.pause("", desk.now_s)
    assert desk.batcher.counters.backpressure_pauses == 1
    desk.at(200.1)
    desk.batcher.pause("", desk.now_s)
    assert desk.batcher.counters.backpressure_pauses == 2


def test_a_pause_of_clients_without_a_tenant_holds_no_tenant():
    desk = Desk()
    desk.batcher.pause("", desk.now_s)
    named = desk.add(tenant="named")
    (call,) = desk.due()
    assert names(call) == [named]


def test_deadlines_pass_in_the_queue():
    desk = Desk()
    request = GenerateParams(stream_id="late", prompt="x")
    desk.batcher.enqueue(request, now_s=desk.now_s, deadline_s=desk.now_s + 1)
    assert desk.batcher.expired(desk.now_s) == []
    assert [entry.params.stream_id for entry in desk.batcher.expired(desk.now_s + 1)] == ["late"]
    assert desk.sizes() == []


def test_without_batching_every_request_is_a_call_and_counted():
    desk = Desk()
    desk.batcher.allow_batching(False)
    for _ in range(3):
        desk.add()
    assert desk.sizes() == [1, 1, 1]
    assert desk.batcher.counters.fallback_count == 3


def test_unsent_entries_are_returned_in_order_when_the_worker_is_lost():
    desk = Desk()
    added = [desk.add() for _ in range(3)]
    desk.batcher.due(desk.now_s)
    assert len(desk.batcher.lost()) == 3
    (call,) = desk.due()
    assert names(call) == added


def test_the_target_grows_when_calls_are_quick_and_under_backlog_and_never_shrinks_under_it():
    desk = Desk()
    desk.grow()
    for _ in range(60):  # waits of 50 ms during calls of 100 ms, with a permanent backlog
        desk.add()
        desk.now_s += 0.05
        (call,) = desk.due()
        desk.add()
        desk.now_s += 0.1
        desk.batcher.answered(call, desk.now_s)
        for rest in desk.due():
            desk.batcher.answered(rest, desk.now_s)
    assert desk.batcher.stats()["partitions"][0]["target_batch_size"] == 16


def test_the_target_shrinks_when_calls_are_slow_without_backlog():
    desk = Desk()
    desk.grow()
    for _ in range(120):
        desk.add()
        (call,) = desk.due()
        desk.now_s += 0.03  # 2.5 times target_batch_time_ms
        desk.batcher.answered(call, desk.now_s)
        desk.now_s += 1.0
    assert desk.batcher.stats()["partitions"][0]["target_batch_size"] == 2


def test_stats_and_events_report_the_requests():
    desk = Desk()
    desk.add("urgent")
    desk.add()
    (call,) = desk.due()
    desk.now_s += 4 * MS
    desk.batcher.answered(call, desk.now_s)
    (event,) = desk.events
    assert (event.size, event.priority_mix) == (2, {"urgent": 1, "default": 1})
    assert event.duration_ms == pytest.approx(4.0)
    stats = desk.batcher.stats()
    assert stats["enqueued_by_priority"] == {"urgent": 1, "default": 1}
    assert stats["total_batches"] == 1
    assert stats["total_requests"] == 2
    assert stats["batch_size"] == {"last": 2, "average": 2.0, "max": 2}
    assert stats["dispatch_ms"] == {"p50": pytest.approx(4.0)}
    assert stats["queue_wait_ms"] == {"p50": 0.0, "p95": 0.0}


def test_an_event_counts_refusals_and_aborts_and_names_its_requests():
    desk = Desk()
    for number in range(4):
        request = GenerateParams(stream_id=f"s{number}", prompt="x")
        desk.batcher.enqueue(request, now_s=desk.now_s, request_id=f"req_{number}")
    desk.at(2.0)
    (call,) = desk.batcher.due(desk.now_s)
    desk.batcher.abort("s1")
    desk.batcher.seal(call, desk.now_s)
    desk.batcher.answered(call, desk.now_s, rejected=2)
    (event,) = desk.events
    assert (event.rejected, event.aborted, event.request_ids) == (2, 1, ("req_0", "req_2", "req_3"))
    assert event.hold_ms == pytest.approx(2.0)
    assert desk.batcher.stats()["rejected_requests"] == 2
    desk.now_s += 1.0
    desk.add()
    (call,) = desk.due()
    desk.batcher.answered(call, desk.now_s, failed=True)
    assert desk.events[-1].rejected == 1  # a call that fails refuses everything in it


def test_keys_from_callers_do_not_pile_up():
    desk = Desk()
    for number in range(1000):
        desk.add(model_id=f"m{number}")
        (call,) = desk.due()
        desk.batcher.answered(call, desk.now_s)
    assert len(desk.batcher.stats()["partitions"]) <= 256
