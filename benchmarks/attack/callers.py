"""Three well-behaved clients in a steady loop: a small chat, a stream, and a liveness probe.

Each call has a fresh connection and its own time limit. A call counts as failed unless it gets status 200
and a complete reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from benchmarks.attack.registry import AttackTarget

PAUSE_S = 0.05
TIMEOUT_S = 60.0
CHAT_TOKENS, STREAM_TOKENS = 4, 16


@dataclass(frozen=True, slots=True)
class CallRecord:
    caller: str
    started_s: float  # monotonic clock
    seconds: float
    failure: str  # empty: answered correctly


@dataclass(slots=True)
class Callers:
    """`run` calls until it is cancelled; `calls` grows."""

    target: AttackTarget
    calls: list[CallRecord] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("chat", "stream", "livez"):
                group.create_task(self._loop(name))

    async def _loop(self, name: str) -> None:
        while True:
            started_s = time.monotonic()
            failure = await self._call(name)
            self.calls.append(CallRecord(name, started_s, time.monotonic() - started_s, failure))
            await asyncio.sleep(PAUSE_S)

    async def _call(self, name: str) -> str:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._exchange(self._request(name))
        except TimeoutError:
            return f"no reply within {TIMEOUT_S:g} s"
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        if not reply.startswith(b"HTTP/1.1 200 "):
            return reply[:300].decode("latin-1")
        if name == "stream" and b"data: [DONE]" not in reply:
            return "the stream was truncated: " + reply[-300:].decode("latin-1")
        return ""

    def _request(self, name: str) -> bytes:
        if name == "livez":
            return self.target.head("GET", "/livez", "connection: close")
        stream = name == "stream"
        body = self.target.chat(stream=stream, max_tokens=STREAM_TOKENS if stream else CHAT_TOKENS)
        request = self.target.request("/v1/chat/completions", body)
        return request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await self.target.connect()
        try:
            writer.write(request)
            return await reader.read(-1)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
