"""Batches tokenize and detokenize: calls made together share one `batch_tokenize`.

Calls made in the same event-loop iteration are sent together, one RPC per model. A lone call, a large one,
and every call to a worker without the capability is sent on its own. Each entry has its own answer or error;
a batch that cannot be sent or decoded as a whole is sent call by call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from stretto.errors import FrameError, InvalidRequestError, StrettoError, TooLargeError, UnknownMethodError
from stretto.rpc import messages as m

SHARED_BYTES_MAX = 16 << 10  # of one entry: a longer text would delay the others
SHARED_TOKENS_MAX = 2048
_TOGETHER_FAILED = (InvalidRequestError, TooLargeError, FrameError, UnknownMethodError)


@dataclass(slots=True, eq=False)
class _Asked:
    call: m.TokenCall
    answer: asyncio.Future[m.TokenAnswer]


class TokenCalls:
    """`send` performs one call, with retries if the worker is lost."""

    def __init__(
        self,
        send: Callable[[str, m.Message], Awaitable[Any]],
        start: Callable[[Coroutine[Any, Any, None]], None],
        *,
        batch_max: int,
    ) -> None:
        self._send = send
        self._start = start
        self._batch_max = batch_max
        self._waiting: list[_Asked] = []
        self.batching = False
        self.requests = 0
        self.calls = 0

    def allow_batching(self, allowed: bool, /) -> None:
        """Whether the worker announces `batch_tokenize` and batching is enabled."""
        self.batching = allowed and self._batch_max > 1

    async def tokenize(self, params: m.TokenizeParams) -> list[int]:
        answer = await self._ask(m.TokenCall(tokenize=params), large=_large_text(params))
        return list(answer.tokens or ())

    async def detokenize(self, params: m.DetokenizeParams) -> str:
        large = len(params.tokens) > SHARED_TOKENS_MAX
        return (await self._ask(m.TokenCall(detokenize=params), large=large)).text or ""

    def stats(self) -> dict[str, object]:
        return {"enabled": self.batching, "total_requests": self.requests, "total_calls": self.calls}

    # --- collecting ------------------------------------------------------------------------------

    async def _ask(self, call: m.TokenCall, *, large: bool) -> m.TokenAnswer:
        self.requests += 1
        if large or not self.batching:
            return await self._alone(call)
        loop = asyncio.get_running_loop()
        asked = _Asked(call, loop.create_future())
        self._waiting.append(asked)
        if len(self._waiting) == 1:
            loop.call_soon(self._flush)
        answer = await asked.answer
        if answer.error is not None:
            m.raise_error(answer.error)
        return answer

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        models: dict[str, list[_Asked]] = {}
        for asked in waiting:
            if not asked.answer.done():  # otherwise its caller has left
                models.setdefault(_model_of(asked.call), []).append(asked)
        for group in models.values():
            for at in range(0, len(group), self._batch_max):
                self._start(self._together(group[at : at + self._batch_max]))

    # --- sending ---------------------------------------------------------------------------------

    async def _together(self, group: list[_Asked]) -> None:
        if len(group) == 1:
            await self._one_by_one(group)
            return
        batch = m.BatchTokenizeParams(calls=[asked.call for asked in group])
        try:
            self.calls += 1
            results = (await self._send("batch_tokenize", batch)).results
            if len(results) != len(group):
                raise FrameError("the worker's answer does not match the batch")
        except _TOGETHER_FAILED:
            await self._one_by_one(group)
        except StrettoError as error:
            _settle(group, [m.TokenAnswer(error=m.error_from(error))] * len(group))
        else:
            _settle(group, results)

    async def _one_by_one(self, group: list[_Asked]) -> None:
        answers = await asyncio.gather(*(self._isolated(asked.call) for asked in group))
        _settle(group, answers)

    async def _isolated(self, call: m.TokenCall) -> m.TokenAnswer:
        try:
            return await self._alone(call)
        except Exception as error:
            return m.TokenAnswer(error=m.error_from(error))

    async def _alone(self, call: m.TokenCall) -> m.TokenAnswer:
        self.calls += 1
        if call.tokenize is not None:
            return m.TokenAnswer(tokens=(await self._send("tokenize", call.tokenize)).tokens)
        assert call.detokenize is not None
        return m.TokenAnswer(text=(await self._send("detokenize", call.detokenize)).text)


def _settle(group: list[_Asked], answers: list[m.TokenAnswer]) -> None:
    for asked, answer in zip(group, answers, strict=True):
        if not asked.answer.done():
            asked.answer.set_result(answer)


def _model_of(call: m.TokenCall) -> str:
    params = call.tokenize or call.detokenize
    return params.model_id if params is not None else ""


def _large_text(params: m.TokenizeParams) -> bool:
    if params.messages is None and params.tools is None:
        return len(params.text or "") > SHARED_BYTES_MAX
    return len(msgspec.json.encode(params)) > SHARED_BYTES_MAX
