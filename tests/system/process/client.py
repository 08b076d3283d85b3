"""A minimal client of a worker, for tests: calls with futures, and all stream events."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from stretto.rpc.connection import Connection
from stretto.rpc.envelope import (
    ENGINE_EVENTS,
    MODEL_PROGRESS,
    STREAM_BATCH,
    Call,
    Notification,
    Reply,
    result_of,
)
from stretto.rpc.messages import Empty, GenerateParams, Message, StreamBatch, StreamEnd

WAIT_S = 20.0


class Client:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.texts: dict[str, str] = {}
        self.reasoning: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.calls: dict[str, list[tuple[str, str]]] = {}
        self.logprobs: dict[str, list[Any]] = {}
        self.ends: dict[str, list[StreamEnd]] = {}
        self.batches: list[StreamBatch] = []
        self.progress: list[Any] = []
        self.events: list[Any] = []
        self.unasked: list[Reply] = []
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._waiting: dict[int | str, tuple[str, asyncio.Future[Any]]] = {}
        self._numbers = itertools.count(1)
        connection.open(self._receive, self._lost)

    async def call(self, method: str, params: Message | None = None) -> Any:
        return await asyncio.wait_for(self.start(method, params), WAIT_S)

    def start(self, method: str, params: Message | None = None) -> asyncio.Future[Any]:
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (method, future)
        self.connection.send(Call(number, method, params if params is not None else Empty()))
        return future

    async def generate(self, stream_id: str, **options: Any) -> StreamEnd:
        await self.call("generate", GenerateParams(stream_id=stream_id, **options))
        return await self.end(stream_id)

    async def end(self, stream_id: str) -> StreamEnd:
        await self.until(lambda: stream_id in self.ends)
        return self.ends[stream_id][0]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _receive(self, envelope: Any) -> None:
        if isinstance(envelope, Reply):
            self._reply(envelope)
        elif isinstance(envelope, Notification):
            if envelope.method == STREAM_BATCH:
                self._batch(envelope.params)
            elif envelope.method == MODEL_PROGRESS:
                self.progress.append(envelope.params)
            elif envelope.method == ENGINE_EVENTS:
                self.events.append(envelope.params)
        self._changed.set()

    def _reply(self, reply: Reply) -> None:
        method, future = self._waiting.pop(reply.id, ("", None))
        if future is None:
            self.unasked.append(reply)
            return
        try:
            future.set_result(result_of(method, reply))
        except Exception as error:
            future.set_exception(error)

    def _batch(self, batch: Any) -> None:
        self.batches.append(batch)
        for stream_id, text, count in zip(batch.streams, batch.texts, batch.counts, strict=True):
            self.texts[stream_id] = self.texts.get(stream_id, "") + text
            self.counts[stream_id] = self.counts.get(stream_id, 0) + count
        for stream_id, text in batch.reasoning.items():
            self.reasoning[stream_id] = self.reasoning.get(stream_id, "") + text
        for stream_id, calls in batch.tool_calls.items():
            self.calls.setdefault(stream_id, []).extend((call.name, call.arguments) for call in calls)
        for stream_id, tokens in batch.tokens.items():
            self.tokens.setdefault(stream_id, []).extend(tokens)
        for stream_id, found in batch.logprobs.items():
            self.logprobs.setdefault(stream_id, []).extend(found)
        for end in batch.ends:
            self.ends.setdefault(end.stream_id, []).append(end)

    def _lost(self, error: Exception | None) -> None:
        self.closed.set_result(error)
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection was lost"))
        self._changed.set()
