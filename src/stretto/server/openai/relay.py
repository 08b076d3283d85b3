"""Writes generations as OpenAI's event stream: chunks, usage if requested, then [DONE]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stretto.client.api import Delta, GenerationStream
from stretto.rpc.messages import StreamEnd, UsageMessage
from stretto.server.generation import merged, total_usage
from stretto.server.http.sse import DONE, SseWriter


class Chunks(Protocol):
    """Renders the events of one reply. `render` returns empty bytes if there is nothing to send yet."""

    counts_deltas: bool
    """Whether every chunk contains the usage so far."""

    def count(self, index: int, prompt_tokens: int, delta: Delta) -> None: ...

    def render(self, index: int, delta: Delta) -> bytes: ...

    def usage(self, usage: UsageMessage, ends: Sequence[StreamEnd] = ()) -> bytes: ...


async def relay(
    wire: SseWriter,
    streams: Sequence[GenerationStream],
    chunks: Chunks,
    *,
    n: int,
    include_usage: bool,
    silent: bool = False,
) -> None:
    """`n` streams share each prompt. A disconnect cancels all. `silent`: completion tokens do not count."""
    ends = [StreamEnd(stream_id=stream.stream_id, finish_reason="cancelled") for stream in streams]
    try:
        async for index, delta in merged(streams):
            if delta.end is not None:
                ends[index] = delta.end
            if chunks.counts_deltas:
                chunks.count(index, streams[index].prompt_tokens, delta)
            if data := chunks.render(index, delta):
                await wire.write(data)
    finally:
        for stream in streams:
            stream.cancel()
    total = total_usage([end.usage for end in ends], n)
    if silent:
        total = msgspec.structs.replace(total, completion_tokens=0)
    tail = chunks.usage(total, ends) if include_usage else b""
    await wire.end(tail + DONE)
