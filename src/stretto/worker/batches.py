"""Batch calls: entries succeed or fail independently, and every batch is measured.

`batch_generate` and `batch_tokenize` return one item per entry, in order. Runs on the RPC loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from stretto.errors import DuplicateRequestError, InvalidRequestError
from stretto.rpc import messages as m
from stretto.rpc.batches import ReadBatch
from stretto.worker.session import logged

BATCH_MAX = 1024
Generate = Callable[[m.GenerateParams, float], Awaitable[m.GenerateResult]]


class BatchLog:
    """Sizes, durations, groups and rejections of this worker's batches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._telemetry = m.BatchTelemetry()

    @property
    def telemetry(self) -> m.BatchTelemetry:
        return msgspec.structs.replace(self._telemetry)

    def generate(self, batch: m.BatchGenerateParams, begin: Generate) -> Awaitable[m.BatchGenerateResult]:
        """Calls `begin` for each entry in order; of two equal stream ids the first is served."""
        arrived_s = self._clock()
        items = asyncio.gather(*_items(batch, begin, arrived_s))
        return self._answer(batch, items, arrived_s)

    async def _answer(
        self, batch: m.BatchGenerateParams, items: Awaitable[list[m.BatchItem]], arrived_s: float
    ) -> m.BatchGenerateResult:
        results = await items
        self._note(batch, results, self._clock() - arrived_s)
        return m.BatchGenerateResult(results=results)

    def _note(self, batch: m.BatchGenerateParams, results: Sequence[m.BatchItem], took_s: float) -> None:
        seen = self._telemetry
        seen.calls += 1
        seen.requests += len(results)
        seen.groups += len({(one.model_id, one.draft_model) for one in batch.requests})
        seen.refused += sum(not item.success for item in results)
        seen.unreadable += len(_unreadable(batch))
        seen.size_last, seen.size_max = len(results), max(seen.size_max, len(results))
        seen.seconds += took_s
        seen.seconds_last = took_s


def _unreadable(batch: m.BatchGenerateParams) -> dict[int, m.Error]:
    return batch.unreadable if isinstance(batch, ReadBatch) else {}


def _items(
    batch: m.BatchGenerateParams, begin: Generate, arrived_s: float
) -> Iterator[Awaitable[m.BatchItem]]:
    unreadable = _unreadable(batch)
    check_size(len(batch.requests) + len(unreadable))
    readable, seen = iter(batch.requests), set[str]()
    for index in range(len(batch.requests) + len(unreadable)):
        error = unreadable.get(index)
        yield _refusal(error) if error is not None else _item(next(readable), begin, arrived_s, seen)


def check_size(count: int) -> None:
    if count > BATCH_MAX:
        raise InvalidRequestError(f"{count} requests in one batch", hint=f"send at most {BATCH_MAX}")


def _item(
    params: m.GenerateParams, begin: Generate, arrived_s: float, seen: set[str]
) -> Awaitable[m.BatchItem]:
    try:
        if params.stream_id in seen:
            raise DuplicateRequestError(f"stream id {params.stream_id[:80]!r} occurs twice in this batch")
        seen.add(params.stream_id)
        return _isolated(begin(params, arrived_s))
    except Exception as error:
        return _refusal(logged(error, "batch_generate"))


async def _isolated(work: Awaitable[m.GenerateResult]) -> m.BatchItem:
    try:
        return m.BatchItem(success=True, result=await work)
    except Exception as error:
        return m.BatchItem(success=False, error=logged(error, "batch_generate"))


async def _refusal(error: m.Error) -> m.BatchItem:
    return m.BatchItem(success=False, error=error)


# --- batch_tokenize ------------------------------------------------------------------------------

Tokenize = Callable[[m.Message], Awaitable[m.Message]]


async def tokenize_all(
    calls: Sequence[m.TokenCall], tokenize: Tokenize, detokenize: Tokenize
) -> m.BatchTokenizeResult:
    check_size(len(calls))
    answers = (_token_answer(call, tokenize, detokenize) for call in calls)
    return m.BatchTokenizeResult(results=list(await asyncio.gather(*answers)))


async def _token_answer(call: m.TokenCall, tokenize: Tokenize, detokenize: Tokenize) -> m.TokenAnswer:
    try:
        if (call.tokenize is None) == (call.detokenize is None):
            raise InvalidRequestError("an entry holds exactly one of tokenize and detokenize")
        if call.tokenize is not None:
            result = await tokenize(call.tokenize)
            return m.TokenAnswer(tokens=result.tokens if isinstance(result, m.TokenizeResult) else None)
        assert call.detokenize is not None
        result = await detokenize(call.detokenize)
        return m.TokenAnswer(text=result.text if isinstance(result, m.DetokenizeResult) else None)
    except Exception as error:
        return m.TokenAnswer(error=logged(error, "batch_tokenize"))
