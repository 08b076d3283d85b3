"""A cheap client: many event streams in one event loop, counted without parsing.

It shares the machine with the server under measurement, so it reads bytes, looks for the end, and takes the
number of tokens from the last chunk's usage.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_CODE = re.compile(rb'"code":"(\w+)"')
_TAIL_BYTES = 1 << 10


@dataclass(slots=True)
class StreamReply:
    """One stream as received by its client."""

    status: int = 0
    chunks: int = 0
    tokens: int = 0
    done: bool = False  # the stream completed
    error: str = ""  # the code, if it ended with an error
    first_s: float | None = None
    last_s: float = 0.0
    gap_s: float = 0.0  # the longest time between two pieces
    head: bytes = b""
    tail: bytes = b""


@dataclass(slots=True, eq=False)
class _StreamReader(asyncio.Protocol):
    reply: StreamReply
    over: asyncio.Future[None]
    leave_after_chunks: int | None = None
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        reply = self.reply
        now_s = time.monotonic()
        if not reply.status:
            reply.status = int(data[9:12])
            reply.head = data[:_TAIL_BYTES]
        count = data.count(b"data: ")
        if count:
            if reply.first_s is None:
                reply.first_s = now_s
            else:
                reply.gap_s = max(reply.gap_s, now_s - reply.last_s)
            reply.last_s = now_s
            reply.chunks += count
        reply.tail = (reply.tail + data)[-_TAIL_BYTES:]
        plain = b"content-type: application/json" in reply.head
        ended = b"data: [DONE]" in reply.tail or (plain and data.endswith(b"}"))
        left = self.leave_after_chunks is not None and reply.chunks >= self.leave_after_chunks
        if ended or left:
            reply.done = ended and reply.status == 200
            self._finish()

    def connection_lost(self, _error: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if self.transport is not None:
            self.transport.abort() if self.leave_after_chunks is not None else self.transport.close()
        if not self.over.done():
            match = _TOKENS.findall(self.reply.tail)
            self.reply.tokens = int(match[-1]) if match else 0
            code = _CODE.findall(self.reply.tail)
            self.reply.error = code[-1].decode() if code and b'"error":' in self.reply.tail else ""
            self.over.set_result(None)


def request_bytes(host: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def stream(
    address: tuple[str, int],
    body: dict[str, Any],
    *,
    leave_after_chunks: int | None = None,
    leave_after_s: float | None = None,
    timeout_s: float = 300.0,
) -> StreamReply:
    """Runs one request to its end, or until the client disconnects."""
    loop = asyncio.get_running_loop()
    reply = StreamReply()
    over: asyncio.Future[None] = loop.create_future()
    try:
        transport, _ = await loop.create_connection(
            lambda: _StreamReader(reply, over, leave_after_chunks), *address
        )
    except OSError:
        return reply
    transport.write(request_bytes(address[0], body))
    try:
        await asyncio.wait_for(over, leave_after_s if leave_after_s is not None else timeout_s)
    except TimeoutError:
        transport.abort()
    return reply


def chat(model: str, *, max_tokens: int, words: int = 16, seed: int = 0) -> dict[str, Any]:
    """A streamed chat of fixed length, ignoring the end-of-text token."""
    text = " ".join(f"w{(seed * 7919 + index) % 997}" for index in range(words))
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
