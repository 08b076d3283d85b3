"""Steps that hold the event loop leave half of its time to others."""

from __future__ import annotations

import asyncio
import time

import pytest

from stretto.server.http.pacing import paced

STEP_S = 0.03


@pytest.mark.parametrize("fails", [False, True])
def test_others_run_between_steps_as_long_as_the_steps_took(fails: bool) -> None:
    asyncio.run(check_rests(fails=fails))


async def check_rests(*, fails: bool) -> None:
    lock, ticks = asyncio.Lock(), []

    async def step() -> None:
        async with lock, paced():
            time.sleep(STEP_S)
            if fails:
                raise ValueError

    async def ticking() -> None:
        while True:
            ticks.append(time.perf_counter())
            await asyncio.sleep(0.001)

    other = asyncio.create_task(ticking())
    started_s = time.perf_counter()
    await asyncio.gather(*(step() for _ in range(5)), return_exceptions=True)
    took_s = time.perf_counter() - started_s
    other.cancel()
    assert took_s >= 2 * 5 * STEP_S
    assert len(ticks) > 5 * 4  # several of them in each rest, not one between two steps
