"""One loaded embedding or reranking model: `EmbedParams` in, `EmbedResult` out.

Turns requests into token sequences, runs them on the pool of contexts, and converts the output to unit
vectors or scores. The blocking calls serve the SDK, the `a…` variants the worker's event loop; in both, a
deadline or a cancelled task drops the inputs that have not been computed yet.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretto.errors import DeadlineError, InvalidRequestError, ReplyTooLargeError, UnsupportedByModelError
from stretto.rpc.messages import EmbedParams, EmbedResult, ModelStats, RerankParams, RerankResult, TextBound
from stretto.text import bounds
from stretto.text.tokenizer import Tokenizer
from stretto.worker.contexts import ContextPool, PoolStats, Vectors
from stretto.worker.embed_inputs import InputReader

Runner = Callable[..., Awaitable[list[list[int]]]]
_TINY = 1e-12
REPLY_BYTES = 4096  # of a reply, besides its vectors


@dataclass(frozen=True, slots=True)
class Making:
    """What this model produces."""

    name: str
    width: int
    ranks: bool = False
    probabilities: bool = False  # a reranker whose graph ends in a softmax


class EmbeddingRuntime:
    """Thread-safe; also usable from an event loop."""

    def __init__(
        self,
        pool: ContextPool,
        reader: InputReader,
        making: Making,
        *,
        tokenizer: Tokenizer,
        description: Mapping[str, Any] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.making = making
        self.description: Mapping[str, Any] = description or {}
        self._pool = pool
        self._reader = reader
        self._on_close = on_close

    @cached_property
    def text_bound(self) -> TextBound | None:
        return bounds.text_bound(self.tokenizer, self.window)

    @property
    def window(self) -> int:
        """Maximum tokens of one input."""
        return self._reader.window

    # --- asking ----------------------------------------------------------------------------------

    def embed(self, params: EmbedParams) -> EmbedResult:
        end_s = _end(params.deadline_ms)
        inputs = self._embed_inputs(params)
        return self._embedded(params, inputs, _wait(self._submit(params, inputs, end_s), end_s))

    def rerank(self, params: RerankParams) -> RerankResult:
        end_s = _end(params.deadline_ms)
        inputs = self._rerank_inputs(params)
        return self._ranked(params, inputs, _wait(self._submit(params, inputs, end_s), end_s))

    async def aembed(
        self,
        params: EmbedParams,
        *,
        run: Runner = asyncio.to_thread,
        on_start: Callable[[], None] | None = None,
    ) -> EmbedResult:
        """`run`: executes tokenization off the event loop, which takes a while for 2,000 texts."""
        end_s = _end(params.deadline_ms)
        inputs = await run(self._embed_inputs, params)
        vectors = await _await(self._submit(params, inputs, end_s, on_start), end_s)
        return await asyncio.to_thread(self._embedded, params, inputs, vectors)

    async def arerank(
        self,
        params: RerankParams,
        *,
        run: Runner = asyncio.to_thread,
        on_start: Callable[[], None] | None = None,
    ) -> RerankResult:
        end_s = _end(params.deadline_ms)
        inputs = await run(self._rerank_inputs, params)
        vectors = await _await(self._submit(params, inputs, end_s, on_start), end_s)
        return self._ranked(params, inputs, vectors)

    def check_reply(self, params: EmbedParams, *, bytes_max: int) -> None:
        """Reject requests whose vectors would not fit a message before they are computed."""
        width = min(params.dimensions or self.making.width, self.making.width)
        inputs_max = (bytes_max - REPLY_BYTES) * 3 // (16 * max(width, 1))  # four bytes per number, in base64
        if len(params.inputs) > inputs_max:
            raise ReplyTooLargeError(
                f"{len(params.inputs)} vectors of width {width} do not fit a reply; at most {inputs_max} do",
                hint="send the inputs in several requests",
            )

    # --- life (a `Resident` of the worker's pool of models) -------------------------------------

    @property
    def stats(self) -> PoolStats:
        return self._pool.stats

    @property
    def what(self) -> str:
        return "a reranker" if self.making.ranks else "an embedding model"

    def model_stats(self, model_id: str) -> ModelStats:
        """The same statistics as for a generating model: a batch counts as a tick, a context as a slot."""
        stats = self._pool.stats
        return ModelStats(
            model_id=model_id,
            ticks=stats.batches,
            prompt_tokens=stats.tokens,
            computed_tokens=stats.tokens,
            active_slots=stats.busy,
            slots=self._pool.size,
            queued=dict(stats.queued),
            pass_s=stats.batch_s,
            busy=stats.requests > 0,
        )

    @property
    def busy(self) -> bool:
        return self._pool.stats.requests > 0

    @property
    def alive(self) -> bool:
        return True  # a context that breaks is rebuilt

    def drain(self) -> None:
        self._pool.drain()

    def close(self) -> None:
        ended = self._pool.close()
        if ended and self._on_close is not None:
            self._on_close()

    # --- inside ----------------------------------------------------------------------------------

    def _submit(
        self,
        params: EmbedParams | RerankParams,
        inputs: Sequence[Sequence[int]],
        end_s: float | None,
        on_start: Callable[[], None] | None = None,
    ) -> Future[Vectors]:
        return self._pool.submit(
            inputs, deadline_s=end_s, priority=params.priority, tenant=params.tenant, on_start=on_start
        )

    def _embed_inputs(self, params: EmbedParams) -> list[list[int]]:
        making = self.making
        if making.ranks:
            raise UnsupportedByModelError(
                f"{making.name} is a reranker: it scores documents and makes no embeddings",
                hint="send it to /v1/rerank, or name an embedding model",
            )
        if params.dimensions is not None and not 1 <= params.dimensions <= making.width:
            raise InvalidRequestError(
                f"dimensions is {params.dimensions}; the vectors of {making.name} have {making.width}",
                hint=f"1 to {making.width}",
            )
        return self._reader.texts(params.inputs, params.truncate)

    def _rerank_inputs(self, params: RerankParams) -> list[list[int]]:
        if not self.making.ranks:
            raise UnsupportedByModelError(
                f"{self.making.name} is an embedding model: it does not score documents",
                hint="name a reranker, or compare embeddings",
            )
        return self._reader.pairs(params.query, params.documents, params.truncate)

    def _embedded(
        self, params: EmbedParams, inputs: Sequence[Sequence[int]], vectors: Vectors
    ) -> EmbedResult:
        kept = vectors[:, : params.dimensions] if params.dimensions else vectors
        if params.normalize:
            kept = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), _TINY)
        return EmbedResult(
            vectors=np.ascontiguousarray(kept, dtype="<f4").tobytes(),
            width=kept.shape[1],
            prompt_tokens=sum(map(len, inputs)),
        )

    def _ranked(
        self, params: RerankParams, inputs: Sequence[Sequence[int]], vectors: Vectors
    ) -> RerankResult:
        scores = [float(score) for score in vectors[:, 0]]
        if not params.raw_scores and not self.making.probabilities:
            scores = [_sigmoid(score) for score in scores]
        return RerankResult(scores=scores, prompt_tokens=sum(map(len, inputs)))


def _sigmoid(score: float) -> float:
    """Numerically stable for large positive and negative scores."""
    small = math.exp(-abs(score))
    return 1 / (1 + small) if score >= 0 else small / (1 + small)


def _end(deadline_ms: float | None) -> float | None:
    return None if deadline_ms is None else time.monotonic() + deadline_ms / 1000


def _late() -> DeadlineError:
    return DeadlineError(
        "the deadline passed before all inputs were computed", hint="send fewer, or wait longer"
    )


def _wait(future: Future[Vectors], end_s: float | None) -> Vectors:
    """Block for a result; cancels the future if the wait is interrupted."""
    try:
        return future.result(None if end_s is None else max(0.0, end_s - time.monotonic()))
    except concurrent.futures.TimeoutError:
        raise _late() from None
    finally:
        future.cancel()  # no effect once it is done


async def _await(future: Future[Vectors], end_s: float | None) -> Vectors:
    try:
        left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        return await asyncio.wait_for(asyncio.wrap_future(future), left_s)
    except TimeoutError:
        raise _late() from None
    finally:
        future.cancel()
