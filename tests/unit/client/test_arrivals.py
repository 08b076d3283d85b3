"""Requests on their way: how long they are waited for, and when they have come."""

from __future__ import annotations

import asyncio

from stretto.client.arrivals import Arrivals


class Desk:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.settled = 0
        self.arrivals = Arrivals(window_s=0.003, clock=lambda: self.now_s, settled=self.settle)

    def settle(self) -> None:
        self.settled += 1


def test_nothing_is_waited_for_when_nothing_is_coming():
    desk = Desk()
    assert desk.arrivals.until_s() == float("-inf")
    desk.arrivals.came()  # a caller that announced nothing, e.g. one of the SDK
    assert desk.settled == 0


def test_a_request_arrives_at_its_first_call_and_counts_once():
    desk = Desk()
    with desk.arrivals.arriving():
        assert desk.arrivals.until_s() == 100.003
        desk.arrivals.came()
        assert desk.arrivals.until_s() == float("-inf")
        desk.arrivals.came()
    assert desk.settled == 1


def test_rejected_and_abandoned_requests_no_longer_count_as_arriving():
    desk = Desk()
    with desk.arrivals.arriving():
        pass
    assert (desk.settled, desk.arrivals.until_s()) == (1, float("-inf"))


def test_the_youngest_decides_and_each_is_waited_for_one_window_at_most():
    desk = Desk()
    with desk.arrivals.arriving():
        desk.now_s = 100.002
        with desk.arrivals.arriving():
            assert desk.arrivals.until_s() == 100.005
            desk.arrivals.came()
            assert desk.settled == 0
        assert desk.arrivals.until_s() == 100.003  # a body that comes slowly: over a millisecond later


def test_a_task_that_is_started_for_a_request_belongs_to_it():
    desk = Desk()

    async def scenario() -> None:
        async def work() -> None:
            desk.arrivals.came()

        with desk.arrivals.arriving():
            await asyncio.create_task(work())
            assert desk.settled == 1

    asyncio.run(scenario())
