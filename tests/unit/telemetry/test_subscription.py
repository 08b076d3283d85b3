"""Callbacks of subscribers: in order, off the thread that tells, and harmless when slow or broken."""

from __future__ import annotations

import threading
import time

from stretto.telemetry.subscription import Subscription


def test_items_are_delivered_in_order_on_another_thread() -> None:
    seen: list[tuple[int, bool]] = []
    here = threading.current_thread()
    told = Subscription[int](lambda item: seen.append((item, threading.current_thread() is here)))
    for item in range(100):
        told.put(item)
    told.close()
    assert seen == [(item, False) for item in range(100)]
    assert (told.dropped, told.failed) == (0, 0)


def test_a_slow_callback_costs_its_own_items_only() -> None:
    gate, seen = threading.Event(), list[int]()

    def slow(item: int) -> None:
        gate.wait(10)
        seen.append(item)

    told = Subscription[int](slow, waiting_max=10)
    started = time.perf_counter()
    for item in range(1000):
        told.put(item)
    assert time.perf_counter() - started < 0.5
    assert told.dropped >= 985
    gate.set()
    told.close()
    assert (seen[:10], seen) == (list(range(10)), sorted(seen))  # what fitted, in order
    assert len(seen) + told.dropped == 1000


def test_a_callback_that_raises_is_called_again() -> None:
    seen: list[int] = []

    def broken(item: int) -> None:
        seen.append(item)
        raise ValueError("no")

    told = Subscription[int](broken)
    for item in range(5):
        told.put(item)
    told.close()
    assert (seen, told.failed) == ([0, 1, 2, 3, 4], 5)


def test_nothing_is_delivered_after_unsubscribing() -> None:
    seen: list[int] = []
    told = Subscription[int](seen.append)
    told.put(1)
    told()
    told()
    told.put(2)
    told.close()
    assert seen == [1]


def test_a_callback_may_end_its_own_subscription() -> None:
    told: list[Subscription[int]] = []
    told.append(Subscription(lambda _: told[0].close()))
    told[0].put(1)
    told[0].put(2)
    told[0].close()
    assert not told[0]._thread.is_alive()
