"""What the server sees of the engine: one protocol, whoever is behind it.

`Engine` (in `engine.engine`) is the implementation, over a supervised runtime process or, for the SDK and for
tests, over a runtime in the same process. Everything here belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto.client.batch_stats import BatchEvent
from stretto.rpc.messages import (
    EmbedParams,
    EmbedResult,
    EngineEvents,
    GenerateParams,
    ModelInfo,
    PromptProgress,
    RerankParams,
    RerankResult,
    Stats,
    StreamEnd,
    StreamStart,
    TokenizeParams,
    TokenLogprob,
    ToolCallDelta,
)

OnStart = Callable[[float], None]


@dataclass(slots=True)
class Delta:
    """What a stream received since the reader last looked: pieces that came together are joined."""

    text: str = ""
    reasoning: str = ""
    token_count: int = 0
    tokens: list[int] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    start: StreamStart | None = None  # with the first delta after the stream had its slot
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    progress: PromptProgress | None = None  # the latest
    end: StreamEnd | None = None  # on the last delta, and only there


@dataclass(frozen=True, slots=True)
class Health:
    """`ready`: a model can answer now. `reason`: loading, draining, hung, restarting, crash loop."""

    ready: bool
    reason: str = ""
    progress: float | None = None  # of a load that is under way


class GenerationStream(Protocol):
    """One generation. Iterate over it to its end; the last delta carries `end`.

    An end with an error is raised as the matching StrettoError. Leaving early: call `cancel`, which is safe
    at any time and twice; the slot is free within a tick.
    """

    @property
    def stream_id(self) -> str: ...

    @property
    def prompt_tokens(self) -> int:
        """0 until the runtime has taken it in."""

    @property
    def end(self) -> StreamEnd | None:
        """Its end with usage and timing, once there is one; after `cancel` what was known by then."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    async def accepted(self) -> int:
        """Wait until the runtime has taken it in (its prompt tokens), or raise what refused it."""

    def cancel(self) -> None: ...


class EngineApi(Protocol):
    async def start(self) -> None:
        """Bring the runtime up. Answers when it accepts calls; models may still be loading."""

    async def close(self) -> None:
        """Cut what runs and end the runtime. No process, socket or file is left."""

    def drain(self) -> None:
        """Refuse new work with shutting_down, end what is queued, let what runs finish."""

    async def wait_idle(self, timeout_s: float) -> bool:
        """After `drain`: True once nothing runs any more."""

    @property
    def health(self) -> Health: ...

    async def models(self) -> list[ModelInfo]: ...

    async def load(self, model_id: str) -> ModelInfo: ...

    async def unload(self, model_id: str) -> None: ...

    def generate(self, params: GenerateParams) -> GenerationStream:
        """Never blocks, never raises for what the request says: refusals come from the stream."""

    async def tokenize(self, params: TokenizeParams) -> list[int]: ...

    async def detokenize(self, tokens: list[int], model_id: str = "") -> str: ...

    async def embed(self, params: EmbedParams, *, on_start: OnStart | None = None) -> EmbedResult:
        """`on_start` is told once, when its first pass begins: how many seconds it had waited."""

    async def rerank(self, params: RerankParams, *, on_start: OnStart | None = None) -> RerankResult:
        """As `embed`."""

    async def stats(self) -> Stats: ...

    def batch_stats(self) -> dict[str, Any]:
        """Seed 002's getBatchStats(): {"generate": {...}} of the batcher, and {"streams": {...}}."""

    def arriving(self) -> AbstractContextManager[None]:
        """While a request is being read: others that are queued may wait a moment for it.

        It has come once it asks the engine for anything from inside; leaving ends it in any case.
        """

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None:
        """Seed 002's onBatchDispatched: called for every call to the runtime that carried generations."""

    def watch(self) -> AsyncIterator[EngineEvents]:
        """Ticks as they happen, for the dashboard. Ends with the iterator; slow watchers lose events."""
