"""`WorkerClient`: the protocol through which the server uses a worker.

`RpcClient` (in `client.rpc_client`) implements it over a supervised worker process or, in tests, over a
worker in the same process. All objects here belong to one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto.client.batch_stats import BatchEvent
from stretto.rpc.messages import (
    DetokenizeParams,
    EmbedParams,
    EmbedResult,
    EngineEvents,
    GenerateParams,
    ModelInfo,
    PromptMeasures,
    PromptProgress,
    RerankParams,
    RerankResult,
    Stats,
    StreamEnd,
    StreamStart,
    TokenizeParams,
    TokenLogprob,
    TokenMeasure,
    ToolCallDelta,
)

OnStart = Callable[[float], None]


@dataclass(slots=True)
class Delta:
    """What a stream received since the last read; pieces that arrived together are joined."""

    text: str = ""
    reasoning: str = ""
    token_count: int = 0
    tokens: list[int] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    start: StreamStart | None = None  # on the first delta after admission to a slot
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    progress: PromptProgress | None = None  # the latest
    measures: list[TokenMeasure | None] = field(default_factory=list)  # of `tokens`: streams with a number
    scores: list[PromptMeasures] = field(default_factory=list)  # of the prompt: streams with a number
    end: StreamEnd | None = None  # on the last delta, and only there


@dataclass(frozen=True, slots=True)
class Health:
    """`ready`: a model can answer now. `reason`: loading, draining, hung, restarting, crash loop."""

    ready: bool
    reason: str = ""
    progress: float | None = None  # of a load in progress
    has_loaded: bool = False  # a model, since the worker came up; one that was unloaded comes back on demand


class GenerationStream(Protocol):
    """One generation. Iterate to the end; the last delta carries `end`.

    An error is raised as the matching StrettoError. To stop early, call `cancel`: it is safe at any time and
    idempotent, and frees the slot within one tick.
    """

    @property
    def stream_id(self) -> str: ...

    @property
    def prompt_tokens(self) -> int:
        """0 until the worker has accepted the request."""

    @property
    def end(self) -> StreamEnd | None:
        """Usage and timing once the stream has ended; after `cancel`, what was known at that point."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    async def accepted(self) -> int:
        """Wait until the worker accepts the request; its prompt tokens. Raises if it is rejected."""

    def cancel(self) -> None: ...


class StoppableStream(GenerationStream, Protocol):
    """A generation whose text its caller makes."""

    def stop(self, tokens_kept: int) -> None:
        """The caller found a stop string: end as finished after this many tokens. The end still follows."""


class WorkerClient(Protocol):
    async def start(self) -> None:
        """Start the worker. Returns once it accepts calls; models may still be loading."""

    async def close(self) -> None:
        """Cancel running requests and stop the worker. Leaves no process, socket or file behind."""

    def drain(self) -> None:
        """Reject new requests with shutting_down, end queued ones, let running ones finish."""

    async def wait_idle(self, timeout_s: float) -> bool:
        """After `drain`: True once no request is running."""

    @property
    def health(self) -> Health: ...

    async def models(self) -> list[ModelInfo]: ...

    async def load(self, model_id: str) -> ModelInfo: ...

    async def unload(self, model_id: str) -> None: ...

    def generate(self, params: GenerateParams) -> GenerationStream:
        """Never blocks and never raises because of the request: rejections are raised by the stream."""

    async def tokenize(self, params: TokenizeParams) -> list[int]: ...

    async def detokenize(self, params: DetokenizeParams) -> str: ...

    async def embed(self, params: EmbedParams, *, on_start: OnStart | None = None) -> EmbedResult:
        """`on_start` is called once, when the first pass begins, with the seconds spent waiting."""

    async def rerank(self, params: RerankParams, *, on_start: OnStart | None = None) -> RerankResult:
        """As `embed`."""

    async def stats(self) -> Stats: ...

    def batch_stats(self) -> dict[str, Any]:
        """Seed 002's getBatchStats(): {"generate": {...}} of the batcher, and {"streams": {...}}."""

    def arriving(self) -> AbstractContextManager[None]:
        """Hold this context while a request is being read: queued requests may wait briefly to join it in a
        batch.

        The request counts as arrived at its first call to this client; leaving the context ends it in any
        case.
        """

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None:
        """Seed 002's onBatchDispatched: `listener` is called after every RPC that carried generations."""

    def watch(self) -> AsyncIterator[EngineEvents]:
        """Ticks as they happen, for the dashboard. Stops with the iterator; slow readers lose events."""


class TokenClient(WorkerClient, Protocol):
    """A client that also serves calls of token ids, and tells which models it serves."""

    on_models: Callable[[list[ModelInfo]], None]

    def generate(self, params: GenerateParams) -> StoppableStream: ...
