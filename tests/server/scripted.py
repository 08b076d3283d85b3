"""An engine that says what it is told, and writes down what it was asked. For exact replies."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from stretto.client.api import Delta, Health, OnStart
from stretto.client.batch_stats import BatchEvent
from stretto.errors import StrettoError, UnsupportedByModelError
from stretto.rpc.messages import (
    DetokenizeParams,
    EmbedParams,
    EmbedResult,
    EngineEvents,
    GenerateParams,
    ModelInfo,
    RerankParams,
    RerankResult,
    Stats,
    StreamEnd,
    TokenizeParams,
    TokenLogprob,
    ToolCallDelta,
    UsageMessage,
)

HANG = "hang"
Step = Delta | BaseException | float | str  # what comes, what is raised, a pause, or HANG
Script = Callable[[GenerateParams], Sequence[Step]]


def end(reason: str = "stop", *, stop: str | None = None, **usage: int) -> Delta:
    counts = {"prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": 5, **usage}
    return Delta(end=StreamEnd(stream_id="", finish_reason=reason, stop=stop, usage=UsageMessage(**counts)))


def said(*pieces: str, reason: str = "stop", **usage: int) -> Script:
    steps: list[Step] = [Delta(text=piece, token_count=1) for piece in pieces]
    return lambda params: [*steps, end(reason, **usage)]


def logprob(token: str, value: float, *top: tuple[str, float]) -> TokenLogprob:
    ranked = [(text, 1, at, text.encode()) for text, at in top]
    return TokenLogprob(token=token, token_id=1, logprob=value, raw=token.encode(), top=ranked)


def usual(params: GenerateParams) -> Sequence[Step]:
    """Calls a tool where that is forced, keeps to JSON where that is asked, else says three words."""
    if params.tool_use is not None and params.tool_use.choice not in ("auto", "none"):
        choice = params.tool_use.choice
        first = params.tool_use.tools[0]["function"]["name"]
        name = choice["function"]["name"] if isinstance(choice, dict) else first
        return [Delta(tool_calls=[ToolCallDelta(index=0, name=name, arguments='{"a": 1}')]), end()]
    if params.guidance is not None:
        return [Delta(text='{"a":'), Delta(text=" 1}"), end()]
    pieces = ["Hello", " there", "."]
    wanted = params.sampling.get("logprobs", -1)
    steps: list[Step] = []
    for piece in pieces:
        found = [logprob(piece, -0.5, *((f"t{i}", -1.0 - i) for i in range(wanted)))] if wanted >= 0 else []
        steps.append(Delta(text=piece, token_count=1, logprobs=found))
    return [*steps, end("length" if params.max_tokens == 1 else "stop")]


class ScriptedStream:
    def __init__(self, worker_client: ScriptedClient, params: GenerateParams, steps: Sequence[Step]) -> None:
        self.stream_id = params.stream_id
        self.prompt_tokens = 7
        self._worker_client = worker_client
        self._steps = list(steps)
        self._over = False
        self._end: StreamEnd | None = None
        self._cancelled = asyncio.Event()

    @property
    def end(self) -> StreamEnd | None:
        return self._end

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> Delta:
        while not self._over:
            step = self._steps.pop(0) if self._steps else HANG
            if step == HANG:
                await self._cancelled.wait()
                self._over = True
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, BaseException):
                self._over = True
                raise step
            else:
                assert isinstance(step, Delta)
                await asyncio.sleep(0)
                self._end = step.end
                self._over = step.end is not None
                return step
        self._worker_client.running.discard(self.stream_id)
        raise StopAsyncIteration

    async def accepted(self) -> int:
        if self._steps and isinstance(self._steps[0], StrettoError):
            raise self._steps[0]
        return self.prompt_tokens

    def cancel(self) -> None:
        if not self._over and not self._cancelled.is_set():
            self._worker_client.cancelled.append(self.stream_id)
        self._worker_client.running.discard(self.stream_id)
        self._cancelled.set()


class ScriptedClient:
    """One chat model, `tiny`; with `vectors` also an embedding model and a reranker."""

    def __init__(self, script: Script = usual, *, vectors: bool = False) -> None:
        self.script = script
        self.vectors = vectors
        self.calls: list[GenerateParams] = []
        self.asked: list[Any] = []
        self.cancelled: list[str] = []
        self.running: set[str] = set()

    @property
    def last(self) -> GenerateParams:
        return self.calls[-1]

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def drain(self) -> None: ...

    async def wait_idle(self, timeout_s: float) -> bool:
        return not self.running

    @property
    def health(self) -> Health:
        return Health(ready=True)

    async def models(self) -> list[ModelInfo]:
        found = [ModelInfo(id="tiny", kind="dense", loaded=True, slots=4, context_window=2048)]
        if self.vectors:
            found.append(ModelInfo(id="vectors", kind="embedding", loaded=True))
            found.append(ModelInfo(id="ranks", kind="reranker", loaded=True))
        return found

    async def load(self, model_id: str) -> ModelInfo:
        return (await self.models())[0]

    async def unload(self, model_id: str) -> None: ...

    def generate(self, params: GenerateParams) -> ScriptedStream:
        self.calls.append(params)
        self.running.add(params.stream_id)
        return ScriptedStream(self, params, self.script(params))

    async def tokenize(self, params: TokenizeParams) -> list[int]:
        self.asked.append(params)
        text = params.text if params.text is not None else "".join(str(m) for m in params.messages or ())
        return list(text.encode())

    async def detokenize(self, params: DetokenizeParams) -> str:
        self.asked.append(params)
        return bytes(token % 256 for token in params.tokens).decode("utf-8", "replace")

    async def embed(self, params: EmbedParams, *, on_start: OnStart | None = None) -> EmbedResult:
        self.asked.append(params)
        if not self.vectors:
            raise UnsupportedByModelError("tiny makes no embeddings")
        width = params.dimensions or 4
        vectors = array("f", [float(at + 1) for _ in params.inputs for at in range(width)])
        return EmbedResult(vectors=vectors.tobytes(), width=width, prompt_tokens=2 * len(params.inputs))

    async def rerank(self, params: RerankParams, *, on_start: OnStart | None = None) -> RerankResult:
        self.asked.append(params)
        if not self.vectors:
            raise UnsupportedByModelError("tiny ranks nothing")
        return RerankResult(scores=[len(text) / 100 for text in params.documents], prompt_tokens=9)

    async def stats(self) -> Stats:
        return Stats(uptime_s=1.0, memory_bytes=1, streams=len(self.running), models=[])

    def arriving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None: ...

    def batch_stats(self) -> dict[str, Any]:
        return {"generate": {}, "streams": {}}

    async def watch(self) -> AsyncIterator[EngineEvents]:
        return
        yield
