"""Paces steps that block the event loop: each is followed by a pause of the same length.

Work done in such steps, one at a time, takes at most half of the loop's time: other requests wait for one
step, however many large bodies are queued. Rejected bodies count as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def paced() -> AsyncIterator[None]:
    started_s = time.perf_counter()
    try:
        yield
    finally:
        await asyncio.sleep(time.perf_counter() - started_s)
