"""When requests leave together, and when they do not wait."""

from __future__ import annotations

import pytest

from stretto.rpc.messages import GenerateParams, Guidance
from tests.unit.client.desk import MS, Desk, names


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
