"""Lanes: round robin over tenants, heavy work never in every lane, cancelled work is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import threading
import time
import weakref

import pytest

from stretto.text.lanes import Lanes


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_tenants_take_turns():
    async def scenario():
        lanes, gate, order = Lanes(1, "test"), threading.Event(), []
        first = asyncio.create_task(lanes.run("a", gate.wait))
        await asyncio.sleep(0.01)
        waiting = [
            asyncio.create_task(lanes.run(tenant, lambda name=tenant: order.append(name)))
            for tenant in ("a", "a", "a", "b", "c")
        ]
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, *waiting)
        assert order == ["a", "b", "c", "a", "a"]
        lanes.close()

    run(scenario)


def test_short_work_does_not_wait_for_long_work():
    async def scenario():
        lanes, gate = Lanes(2, "test"), threading.Event()
        long = [asyncio.create_task(lanes.run("a", gate.wait, heavy=True)) for _ in range(5)]
        await asyncio.sleep(0.01)
        started_s = time.monotonic()
        assert await lanes.run("a", lambda: 7) == 7
        assert time.monotonic() - started_s < 1.0
        gate.set()
        await asyncio.gather(*long)
        assert lanes.waiting == 0
        lanes.close()

    run(scenario)


def test_cancelled_work_is_skipped_and_lanes_are_not_lost():
    async def scenario():
        lanes, gate, done = Lanes(1, "test"), threading.Event(), []
        running = asyncio.create_task(lanes.run("a", gate.wait))
        waiting = [asyncio.create_task(lanes.run("a", lambda n=n: done.append(n))) for n in range(20)]
        await asyncio.sleep(0.01)
        for task in (running, *waiting[:19]):
            task.cancel()
        await asyncio.sleep(0.01)
        assert lanes.waiting == 1
        assert done == []  # what runs keeps its lane, although its caller left
        gate.set()
        await waiting[19]
        assert done == [19]
        assert await lanes.run("b", lambda: "free") == "free"
        lanes.close()

    run(scenario)


def test_errors_belong_to_their_caller():
    async def scenario():
        lanes = Lanes(1, "test")
        with pytest.raises(ZeroDivisionError):
            await lanes.run("a", lambda: 1 // 0)
        assert await lanes.run("a", lambda: 1) == 1
        lanes.close()

    run(scenario)


def test_an_error_does_not_keep_the_text_of_its_request():
    """Without the cyclic collector, which runs rarely in a worker."""

    class Text:
        """Stands for megabytes that a client sent."""

    def refuse(text: Text) -> None:
        raise ValueError(type(text).__name__)

    async def scenario():
        lanes, text = Lanes(1, "test"), Text()
        kept = weakref.ref(text)
        with contextlib.suppress(ValueError):
            await lanes.run("a", functools.partial(refuse, text))
        del text
        await lanes.run("a", lambda: None)  # the lane's thread has let go of its last work by then
        assert kept() is None
        lanes.close()

    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()


def test_lanes_may_leave_processors_to_others():
    async def scenario():
        lanes = Lanes(1, "test", niceness=10)
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
        seen = await lanes.run("a", lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert seen == min(usual + 10, 19)
        assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == usual
        lanes.close()

    run(scenario)
