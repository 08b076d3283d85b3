"""When requests leave together, and when they do not wait."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.client.batch_call import BatchCall
from stretto.client.batch_stats import BatchEvent
from stretto.client.batcher import GenerateBatcher
from stretto.rpc.messages import GenerateParams, Guidance
from stretto.settings import GenerateBatcherSettings

MS = 0.001


class Desk:
    """A batcher, a clock in milliseconds, and what was sent."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[BatchEvent] = []
        self.batcher = GenerateBatcher(GenerateBatcherSettings(**settings), on_dispatched=self.events.append)
        self.now_s = 100.0
        self.number = 0

    def at(self, ms: float) -> None:
        self.now_s = 100.0 + ms * MS

    def add(self, priority: str = "default", **params: Any) -> str:
        self.number += 1
        name = f"s{self.number}"
        request = GenerateParams(stream_id=name, prompt="x", priority=priority, **params)
        self.batcher.enqueue(request, now_s=self.now_s, priority=request.priority)
        return name

    def due(self) -> list[BatchCall]:
        calls = self.batcher.due(self.now_s)
        for call in calls:
            self.batcher.seal(call, self.now_s)
        return calls

    def sizes(self) -> list[int]:
        return [len(call.entries) for call in self.due()]

    def wake_ms(self) -> float | None:
        moment = self.batcher.wake_at_s()
        return None if moment is None else (moment - 100.0) / MS

    def grow(self, size: int = 16) -> None:
        """Quick lone calls until the target is large."""
        for _ in range(20):
            self.now_s += MS
            self.add()
            (call,) = self.due()
            self.batcher.answered(call, self.now_s)
        assert self.batcher.stats()["partitions"][0]["target_batch_size"] == size
        self.now_s += 10.0
        self.events.clear()


def names(call: BatchCall) -> list[str]:
    return [entry.params.stream_id for entry in call.entries]


def test_a_lone_request_leaves_in_its_own_turn():
    desk = Desk()
    desk.add()
    assert desk.sizes() == [1]
    assert desk.wake_ms() is None


@pytest.mark.parametrize(("count", "expected"), [(8, [8]), (16, [16]), (64, [16] * 4), (17, [16, 1])])
def test_requests_of_one_iteration_are_sent_in_the_fewest_calls(count, expected):
    desk = Desk()
    for _ in range(count):
        desk.add()
    assert desk.sizes() == expected


def test_during_a_call_a_request_is_held_until_no_more_arrive():
    desk = Desk()
    desk.grow()
    start = (desk.now_s - 100.0) / MS
    desk.add()
    assert desk.sizes() == [1]
    desk.at(start + 0.2)
    desk.add()
    assert desk.sizes() == []
    assert desk.wake_ms() == pytest.approx(start + 3.2)  # alone: as long as it may
    desk.at(start + 0.7)
    desk.add()
    assert desk.wake_ms() == pytest.approx(start + 1.45)  # another request arrived: held until no more do
    desk.at(start + 1.46)
    assert desk.sizes() == [2]


def test_a_lone_held_request_is_sent_when_the_call_is_answered():
    desk = Desk()
    desk.add()
    (call,) = desk.due()
    desk.at(0.2)
    desk.add()
    desk.at(1.0)
    assert desk.sizes() == []
    desk.batcher.answered(call, desk.now_s)
    assert desk.sizes() == [1]


def test_a_hold_ends_after_max_hold_however_many_come():
    desk = Desk()
    desk.grow()
    start = (desk.now_s - 100.0) / MS
    desk.add()
    assert desk.sizes() == [1]
    sent_ms = None
    for step in range(1, 40):
        desk.at(start + 0.25 * step)
        if step <= 13:
            desk.add()
        if desk.sizes():
            sent_ms = 0.25 * step
            break
    assert sent_ms is not None
    assert 3.0 <= sent_ms <= 3.5


def test_a_full_batch_does_not_wait():
    desk = Desk(max_batch_size=4)
    desk.add()
    desk.due()
    for _ in range(4):
        desk.add()
    assert desk.sizes() == [4]


def test_the_target_ends_a_hold_early_and_caps_nothing():
    desk = Desk()  # a new batcher's target is 2
    desk.add()
    desk.due()
    desk.add()
    assert desk.sizes() == []
    for _ in range(4):
        desk.add()
    assert desk.sizes() == [5]


def test_urgent_leaves_at_once_while_a_batch_is_in_flight_and_takes_others_along():
    desk = Desk()
    desk.add()
    desk.due()
    waiting, background = desk.add(), desk.add("background")
    urgent = desk.add("urgent")
    (call,) = desk.due()
    assert names(call) == [urgent, waiting, background]
    assert desk.batcher.counters.urgent_flushes == 1
    assert desk.batcher.counters.promoted_background == 1


def test_background_waits_longer_and_is_never_starved():
    desk = Desk(max_batch_size=2)
    desk.add()
    desk.due()
    late = desk.add("background")
    assert desk.wake_ms() == pytest.approx(5.0)  # max_hold 3 + extension 2
    sent: list[str] = []
    for step in range(1, 30):
        desk.at(0.25 * step)
        desk.add()
        desk.add()
        for call in desk.due():
            sent += names(call)
    assert late in sent
    assert desk.now_s - 100.0 < 8 * MS


def test_partitions_do_not_mix():
    desk = Desk()
    desk.add(model_id="a")
    desk.add(model_id="b")
    desk.add(model_id="a", guidance=Guidance(mode="regex", value="x"))
    desk.add(model_id="a")
    assert sorted(desk.sizes()) == [1, 1, 2]
    assert len(desk.batcher.stats()["partitions"]) == 3


def test_a_hold_for_requests_on_their_way_ends_when_they_are_here():
    desk = Desk()
    desk.add()
    desk.batcher.expect(desk.now_s + 3 * MS)
    assert desk.sizes() == []
    assert desk.wake_ms() == pytest.approx(3.0)
    desk.at(1.0)
    for _ in range(6):  # more than a new batcher's target, which does not end this hold
        desk.add()
    assert desk.sizes() == []
    desk.batcher.expect(float("-inf"))
    assert desk.sizes() == [7]


def test_a_hold_for_requests_on_their_way_ends_after_max_hold_and_when_the_batch_is_full():
    desk = Desk()
    desk.add()
    desk.at(2.0)
    desk.batcher.expect(desk.now_s + 3 * MS)  # one that has just been announced
    assert not desk.batcher.overdue(desk.now_s)
    assert desk.sizes() == []
    desk.at(3.74)
    assert not desk.batcher.overdue(desk.now_s)
    assert desk.sizes() == []
    desk.at(3.76)  # max_hold_ms, and min_hold_ms for what is on its way
    assert desk.batcher.overdue(desk.now_s)
    assert desk.sizes() == [1]
    desk.now_s += 1.0
    desk.batcher.expect(desk.now_s + 3 * MS)
    for _ in range(16):
        assert not desk.batcher.overdue(desk.now_s)
        desk.add()
    assert desk.batcher.overdue(desk.now_s)
    assert desk.sizes() == [16]


def test_urgent_requests_do_not_wait_for_those_on_their_way():
    desk = Desk()
    desk.batcher.expect(desk.now_s + 3 * MS)
    desk.add("urgent")
    assert desk.sizes() == [1]


def test_a_request_near_its_deadline_is_sent_like_an_urgent_one():
    desk = Desk()
    desk.add()
    desk.due()
    far = GenerateParams(stream_id="far", prompt="x")
    desk.batcher.enqueue(far, now_s=desk.now_s, deadline_s=desk.now_s + 0.051)
    assert desk.sizes() == []
    near = GenerateParams(stream_id="near", prompt="x", priority="background")
    desk.batcher.enqueue(near, now_s=desk.now_s, priority="background", deadline_s=desk.now_s + 0.049)
    (call,) = desk.due()
    assert names(call) == ["near", "far"]
    assert desk.batcher.stats()["near_deadline_requests"] == 1


def test_requests_that_bypass_are_calls_of_their_own_and_wait_for_nothing():
    desk = Desk(bypass=["deadline_ms", "guidance"])
    desk.add()
    desk.due()
    waiting = desk.add()
    alone = [desk.add(deadline_ms=9000.0), desk.add(guidance=Guidance(mode="regex", value="x"))]
    calls = desk.due()
    assert [names(call) for call in calls] == [[name] for name in alone]
    assert all(call.single for call in calls)
    assert desk.batcher.stats()["bypassed_requests"] == 2
    assert desk.batcher.stats()["fallback_count"] == 0
    assert desk.batcher.abort(waiting)


def test_a_bypassing_request_can_be_aborted_and_is_returned_when_the_worker_is_lost():
    desk = Desk(bypass=["deadline_ms"])
    first, second = desk.add(deadline_ms=9000.0), desk.add(deadline_ms=9000.0)
    assert desk.batcher.abort(first)
    assert len(desk.batcher.due(desk.now_s)) == 1
    desk.batcher.lost()
    (call,) = desk.due()
    assert (names(call), call.single) == ([second], True)


def test_a_call_in_flight_holds_only_its_own_partition():
    desk = Desk()
    desk.add(model_id="a")
    desk.due()
    desk.add(model_id="b")
    assert desk.sizes() == [1]


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
