"""Scaling: up by backlog, down when nothing needs the replicas, and no swinging."""

from __future__ import annotations

import pytest

from stretto.cluster.policy.scaling import ScalingPolicy, ScalingState, decide
from stretto.core.backlog import Backlog

POLICY = ScalingPolicy(floor=1, ceiling=8, allowed_wait_s=2.0, up_delay_s=5.0, down_delay_s=60.0)


def backlog(occupied: int = 0, prefill_s: float = 0.0) -> Backlog:
    return Backlog(slots=10, occupied=occupied, prefill_s=prefill_s, service_s=1.0)


class Controller:
    def __init__(self, policy: ScalingPolicy, replicas: int) -> None:
        self.policy, self.replicas, self.state, self.now = policy, replicas, ScalingState(), 0.0
        self.history = [replicas]

    def run(self, seconds: float, load: list[Backlog], *, waiting: int = 0, missed: float = 0.0) -> int:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.replicas, self.state = decide(
                self.policy,
                self.state,
                replicas=self.replicas,
                backlogs=load,
                now=self.now,
                waiting=waiting,
                missed=missed,
            )
            if self.replicas != self.history[-1]:
                self.history.append(self.replicas)
        return self.replicas


def test_a_backlog_adds_replicas_after_the_delay_and_doubles_at_most():
    controller = Controller(POLICY, 1)
    late = [backlog(10, prefill_s=30.0)]
    assert controller.run(5, late) == 1
    assert controller.run(2, late) == 2
    assert controller.run(7, late) == 4


def test_never_above_the_ceiling_or_below_the_floor():
    controller = Controller(POLICY, 4)
    assert controller.run(100, [backlog(500)] * 4) == 8
    assert controller.run(1000, [backlog()] * 8) == 1
    assert Controller(POLICY, 0).run(1, []) == 1
    assert Controller(POLICY, 20).run(1, [backlog(5)] * 20) == 8


def test_a_short_burst_changes_nothing():
    controller = Controller(POLICY, 2)
    for _ in range(10):
        controller.run(4, [backlog(10, prefill_s=20.0)] * 2)
        controller.run(2, [backlog(9)] * 2)
    assert controller.history == [2]


def test_busy_slots_keep_replicas_although_nothing_waits():
    controller = Controller(POLICY, 4)
    assert controller.run(600, [backlog(occupied=6)] * 4) == 4


def test_down_only_as_far_as_the_busiest_moment_of_the_window_allows():
    controller = Controller(POLICY, 8)
    controller.run(30, [backlog(occupied=2)] * 8)  # 16 busy slots: three replicas at 70 %
    controller.run(10, [backlog(occupied=4)] * 8)  # 32 busy slots: five
    assert controller.run(25, [backlog(occupied=1)] * 8) == 5


def test_a_constant_load_does_not_swing():
    """The load moves with the replicas: what one more takes away comes back when it goes."""
    controller = Controller(POLICY, 1)
    for _ in range(1000):
        each = 60.0 / controller.replicas  # requests in all
        controller.run(1, [backlog(occupied=round(each))] * controller.replicas)
    assert controller.history == [1, 2, 3]


def test_refused_requests_ask_for_one_more_replica_and_keep_those_there_are():
    controller = Controller(POLICY, 2)
    assert controller.run(4, [backlog(5)] * 2, missed=0.2) == 2
    assert controller.run(2, [backlog(5)] * 2, missed=0.2) == 3
    assert controller.run(200, [backlog(0)] * 3, missed=1.0) == 8
    assert controller.run(61, [backlog(0)] * 8) == 1


def test_zero_only_when_asked_for_and_after_the_idle_time():
    assert Controller(POLICY, 1).run(5000, [backlog()]) == 1
    policy = ScalingPolicy(floor=0, ceiling=4, idle_to_zero_s=300.0)
    controller = Controller(policy, 1)
    assert controller.run(299, [backlog()]) == 1
    assert controller.run(3, [backlog()]) == 0
    assert controller.run(100, []) == 0
    assert controller.run(1, [], waiting=1) == 1


def test_idle_time_starts_over_with_a_request():
    controller = Controller(ScalingPolicy(floor=0, ceiling=4, idle_to_zero_s=100.0), 1)
    controller.run(90, [backlog()])
    controller.run(1, [backlog(1)])
    assert controller.run(90, [backlog()]) == 1


@pytest.mark.parametrize("fields", [{"floor": 3, "ceiling": 2}, {"allowed_wait_s": 0.0}, {"busy_max": 1.5}])
def test_impossible_policies_are_refused(fields):
    with pytest.raises(ValueError, match=r"at least|positive"):
        ScalingPolicy(**fields)
