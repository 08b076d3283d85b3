"""The deadline of a call, on the worker's clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import TypeVar

from stretto.errors import DeadlineError, InvalidRequestError

DEADLINE_MS_MAX = 1e9  # eleven days
T = TypeVar("T")


def deadline(deadline_ms: float | None, arrived_s: float) -> float | None:
    if deadline_ms is None:
        return None
    if math.isnan(deadline_ms):
        raise InvalidRequestError("deadline_ms must be a number", hint="send milliseconds")
    if deadline_ms <= 0:
        raise DeadlineError("the deadline had passed when the request arrived")
    return arrived_s + min(deadline_ms, DEADLINE_MS_MAX) / 1000


async def within(deadline_s: float | None, work: Awaitable[T]) -> T:
    if deadline_s is None:
        return await work
    try:
        return await asyncio.wait_for(work, max(deadline_s - time.monotonic(), 0.0))
    except TimeoutError:
        raise DeadlineError("the deadline passed while the model was loading") from None
