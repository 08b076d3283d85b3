"""The generations of one request: started, read and cancelled together.

Knows generation streams and no dialect. The second to n-th answers fork the first, so that the prompt is
computed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stretto.client.api import Delta, GenerationStream, WorkerClient
from stretto.errors import ShuttingDownError
from stretto.rpc.messages import (
    GenerateParams,
    ModelInfo,
    StreamEnd,
    TokenLogprob,
    ToolCallDelta,
    UsageMessage,
)
from stretto.server.catalog import Catalog
from stretto.server.http.fields import nth_seed
from stretto.server.http.sse import EventStream, SseWriter
from stretto.server.media.parts import Fetch, no_fetch, with_media

_AHEAD_MAX = 64  # queued deltas of several streams


@dataclass(frozen=True, slots=True)
class Services:
    """What every route needs."""

    worker_client: WorkerClient
    catalog: Catalog
    ping_interval_s: float = 15.0
    first_byte_s: float = 50.0
    fetch: Fetch = no_fetch

    async def media(self, params: GenerateParams) -> GenerateParams:
        """The parameters with the media of their messages apart, fetched where they are addresses."""
        return await with_media(params, self.fetch)

    def events(self, produce: Callable[[SseWriter], Coroutine[Any, Any, None]]) -> EventStream:
        """The reply to a streamed generation."""
        return EventStream(produce, ping_interval_s=self.ping_interval_s, first_byte_s=self.first_byte_s)


@dataclass(slots=True)
class Answer:
    """A complete generation. `end` says how it ended. A truncated tool call is not `done`."""

    end: StreamEnd
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def finish_reason(self) -> str:
        return finish_reason(self.end, calls=bool(self.tool_calls))


def finish_reason(end: StreamEnd, *, calls: bool) -> str:
    """OpenAI's finish reason. A truncated call ends by length."""
    if end.finish_reason == "cancelled":
        raise ShuttingDownError("the generation was cancelled by the server")
    return "tool_calls" if calls and end.finish_reason == "stop" else end.finish_reason


def adapted(model: ModelInfo, params: GenerateParams) -> GenerateParams:
    """With the adapter in the model's name, if it named one."""
    if not model.asked_adapter:
        return params
    named = (model.asked_adapter, None)
    return msgspec.structs.replace(params, lora=[named, *params.lora])


def start(worker_client: WorkerClient, params: GenerateParams, n: int = 1) -> list[GenerationStream]:
    """n generations of the same prompt with different seeds."""
    streams = [worker_client.generate(params)]
    for index in range(1, n):
        fork = msgspec.structs.replace(
            params,
            stream_id=f"{params.stream_id}-{index}",
            sampling=nth_seed(params.sampling, index),
            fork_of=params.stream_id,
        )
        streams.append(worker_client.generate(fork))
    return streams


async def collect(streams: Sequence[GenerationStream]) -> list[Answer]:
    """Read all streams to their end. If one fails or the caller leaves, all are cancelled."""
    try:
        if len(streams) == 1:
            return [await _collect_one(streams[0])]
        return list(await asyncio.gather(*(_collect_one(stream) for stream in streams)))
    finally:
        for stream in streams:
            stream.cancel()


async def _collect_one(stream: GenerationStream) -> Answer:
    texts: list[str] = []
    reasoning: list[str] = []
    parts: list[ToolCallDelta] = []
    answer = Answer(end=StreamEnd(stream_id=stream.stream_id, finish_reason="cancelled"))
    async for delta in stream:
        texts.append(delta.text)
        reasoning.append(delta.reasoning)
        parts.extend(delta.tool_calls)
        answer.logprobs.extend(delta.logprobs)
        answer.prompt_logprobs.extend(delta.prompt_logprobs)
        if delta.end is not None:
            answer.end = delta.end
    answer.text, answer.reasoning = "".join(texts), "".join(reasoning)
    answer.tool_calls = joined_calls(parts)
    return answer


def parts_of(
    calls: Sequence[ToolCallDelta],
) -> tuple[Sequence[ToolCallDelta], Sequence[ToolCallDelta]]:
    """Parts of the open call, which precede a delta's text, and parts that follow it."""
    first = next((at for at, call in enumerate(calls) if call.name), len(calls))
    return calls[:first], calls[first:]


def joined_calls(parts: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
    """Each call in one piece. A truncated call is not `done` and contains what was generated."""
    pieces: list[list[ToolCallDelta]] = []
    for part in parts:
        if part.name:
            pieces.append([part])
        elif pieces:
            pieces[-1].append(part)
    return [
        msgspec.structs.replace(
            own[0], arguments="".join(piece.arguments for piece in own), done=own[-1].done
        )
        for own in pieces
    ]


async def merged(streams: Sequence[GenerationStream]) -> AsyncIterator[tuple[int, Delta]]:
    """Deltas of all streams as they arrive, with the stream's index. Leaving cancels all streams."""
    try:
        if len(streams) == 1:
            async for delta in streams[0]:
                yield 0, delta
            return
        async for pair in _several(streams):
            yield pair
    finally:
        for stream in streams:
            stream.cancel()


async def _several(streams: Sequence[GenerationStream]) -> AsyncIterator[tuple[int, Delta]]:
    ready: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(_AHEAD_MAX)

    async def pump(index: int, stream: GenerationStream) -> None:
        try:
            async for delta in stream:
                await ready.put((index, delta))
            await ready.put((index, None))
        except Exception as error:
            await ready.put((index, error))

    pumps = [asyncio.ensure_future(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(streams)
        while running:
            index, delta = await ready.get()
            if isinstance(delta, Exception):
                raise delta
            if delta is None:
                running -= 1
            else:
                yield index, delta
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def total_usage(usages: Sequence[UsageMessage], n: int) -> UsageMessage:
    """Usage of a whole request: every prompt once (each n-th answer starts one), every completion."""
    prompts = usages[::n]
    return UsageMessage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
        cached_tokens=sum(usage.cached_tokens for usage in prompts),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        proposed_drafts=sum(usage.proposed_drafts for usage in usages),
        accepted_drafts=sum(usage.accepted_drafts for usage in usages),
        image_tokens=sum(usage.image_tokens for usage in prompts),
        audio_tokens=sum(usage.audio_tokens for usage in prompts),
    )
