"""An engine that does what a test says: so many slots, so many tokens a second, hung or draining on demand.

A real `WorkerClient`, with real queues and time, and no model behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from stretto.client.api import Delta, Health, OnStart
from stretto.client.batch_stats import BatchEvent
from stretto.errors import QueueFullError, ShuttingDownError, StrettoError
from stretto.rpc.messages import (
    DetokenizeParams,
    EmbedParams,
    EmbedResult,
    EngineEvents,
    GenerateParams,
    ModelInfo,
    ModelStats,
    RerankParams,
    RerankResult,
    SlotInfo,
    Stats,
    StreamEnd,
    TimingMessage,
    TokenizeParams,
    UsageMessage,
)

MODEL = "scripted"


class ScriptedStream:
    def __init__(self, worker_client: ScriptedClient, params: GenerateParams) -> None:
        self.worker_client = worker_client
        self.params = params
        self.stream_id = params.stream_id
        self.prompt_tokens = 7
        self.waiting_since = asyncio.get_running_loop().time()
        self.queue_wait_s = 0.0
        self.generated = 0
        self.items: asyncio.Queue[Delta | StrettoError] = asyncio.Queue()
        self.work: asyncio.Task[None] | None = None
        self.over = False
        self.ended: StreamEnd | None = None

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self.over and self.items.empty():
            raise StopAsyncIteration
        item = await self.items.get()
        if isinstance(item, StrettoError):
            self.over = True
            raise item
        if item.end is not None:
            self.over = True
        return item

    @property
    def end(self) -> StreamEnd | None:
        return self.ended

    async def accepted(self) -> int:
        return self.prompt_tokens

    def cancel(self) -> None:
        self.worker_client.leave(self)
        if not self.over:
            self.ended = self.make_end("cancelled")
            self.items.put_nowait(Delta(end=self.ended))

    async def generate(self) -> None:
        self.queue_wait_s = asyncio.get_running_loop().time() - self.waiting_since
        for index in range(self.params.max_tokens or 16):
            await asyncio.sleep(self.worker_client.token_s)
            await self.worker_client.moving.wait()
            self.generated += 1
            self.items.put_nowait(Delta(text=f"w{index} ", token_count=1))
        self.ended = self.make_end("length")
        self.items.put_nowait(Delta(end=self.ended))
        self.worker_client.leave(self)

    def make_end(self, reason: str) -> StreamEnd:
        encode_s = 0.001 if self.params.media else 0.0
        return StreamEnd(
            stream_id=self.stream_id,
            finish_reason=reason,
            usage=UsageMessage(prompt_tokens=7, cached_tokens=3, completion_tokens=self.generated),
            timing=TimingMessage(
                queue_wait_s=self.queue_wait_s + encode_s,
                duration_s=1.0,
                admitted=self.work is not None,
                encode_s=encode_s,
            ),
        )


class ScriptedClient:
    def __init__(
        self, *, slots: int = 4, token_s: float = 0.005, queue_max: int = 64, loading: bool = False
    ) -> None:
        self.slots = slots
        self.token_s = token_s
        self.queue_max = queue_max
        self.running: list[ScriptedStream] = []
        self.queue: deque[ScriptedStream] = deque()
        self.moving = asyncio.Event()
        self.moving.set()
        self.state = Health(ready=not loading, reason="loading" if loading else "")
        self.answers = True
        self.tick_age_s = 0.0
        self.draining = False
        self.closed = False
        self.seen: list[GenerateParams] = []

    # --- work ------------------------------------------------------------------------------------

    def generate(self, params: GenerateParams) -> ScriptedStream:
        stream = ScriptedStream(self, params)
        self.seen.append(params)
        if self.draining:
            stream.items.put_nowait(ShuttingDownError("draining"))
        elif len(self.queue) >= self.queue_max:
            stream.items.put_nowait(QueueFullError("the queue is full"))
        else:
            self.queue.append(stream)
            self._admit()
        return stream

    def _admit(self) -> None:
        while self.queue and len(self.running) < self.slots:
            stream = self.queue.popleft()
            self.running.append(stream)
            stream.work = asyncio.get_running_loop().create_task(stream.generate())

    def leave(self, stream: ScriptedStream) -> None:
        if stream in self.queue:
            self.queue.remove(stream)
        if stream in self.running:
            self.running.remove(stream)
            if stream.work is not None and stream.work is not asyncio.current_task():
                stream.work.cancel()
        self._admit()

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """It is up already."""

    async def close(self) -> None:
        self.closed = True
        for stream in [*self.queue, *self.running]:
            stream.items.put_nowait(ShuttingDownError("closed"))
            self.leave(stream)

    def drain(self) -> None:
        self.draining = True
        for stream in list(self.queue):
            self.queue.remove(stream)
            stream.items.put_nowait(ShuttingDownError("it was still waiting"))

    async def wait_idle(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self.running or self.queue:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False
        return True

    @property
    def health(self) -> Health:
        return Health(ready=False, reason="draining") if self.draining else self.state

    # --- looks -----------------------------------------------------------------------------------

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=MODEL, kind="dense", loaded=True, slots=self.slots, context_window=4096)]

    async def load(self, model_id: str) -> ModelInfo:
        return (await self.models())[0]

    async def unload(self, model_id: str) -> None:
        """It stays."""

    async def tokenize(self, params: TokenizeParams) -> list[int]:
        return list(range(len((params.text or "").split())))

    async def detokenize(self, params: DetokenizeParams) -> str:
        return " ".join(f"w{token}" for token in params.tokens)

    async def embed(self, params: EmbedParams, *, on_start: OnStart | None = None) -> EmbedResult:
        raise NotImplementedError

    async def rerank(self, params: RerankParams, *, on_start: OnStart | None = None) -> RerankResult:
        raise NotImplementedError

    async def stats(self) -> Stats:
        while not self.answers:
            await asyncio.sleep(0.05)
        table = [
            SlotInfo(
                index=index,
                state="generating",
                stream_id=stream.stream_id,
                generated=stream.generated,
                tenant=stream.params.tenant,
            )
            for index, stream in enumerate(self.running)
        ]
        table += [SlotInfo(index=index, state="idle") for index in range(len(self.running), self.slots)]
        model = ModelStats(
            model_id=MODEL,
            ticks=10,
            preemptions={"timeout": 2, "time_slice": 3},
            active_slots=len(self.running),
            slots=self.slots,
            queued={"default": len(self.queue)},
            kv_used=len(self.running) / self.slots,
            backlog_s=1.5,
            kv_block_tokens=16,
            kv_blocks=512,
            last_tick_age_s=self.tick_age_s,
            busy=bool(self.running),
            slot_table=table,
        )
        return Stats(uptime_s=1.0, memory_bytes=1 << 20, streams=len(self.running), models=[model])

    def arriving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None: ...

    def batch_stats(self) -> dict[str, Any]:
        return {
            "generate": {
                "total_batches": 3,
                "total_requests": 9,
                "fallback_count": 1,
                "priority_mix": {"default": 8, "urgent": 1},
                "batch_size": {"last": 2, "average": 3.0, "max": 4},
                "queue_wait_ms": {"p50": 0.5, "p95": 2.0},
                "total_queued": 0,
                "calls_in_flight": 0,
            },
            "streams": {"active": len(self.running), "limit": 1024},
        }

    async def watch(self) -> AsyncIterator[EngineEvents]:
        return
        yield
