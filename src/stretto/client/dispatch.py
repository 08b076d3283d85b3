"""Sends the batcher's calls and hands each request's answer to `client.traffic`.

A request that cannot be encoded, or whose frame the worker cannot decode, must not fail the rest of its
batch: the batch is then sent request by request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stretto.client.batch_call import BatchCall
from stretto.client.traffic import Traffic
from stretto.client.transport import Transport
from stretto.errors import (
    CallTimeoutError,
    CapacityError,
    InvalidRequestError,
    RuntimeLostError,
    RuntimeUnavailableError,
    TooLargeError,
)
from stretto.rpc import messages as m


class Dispatcher:
    def __init__(
        self,
        traffic: Traffic,
        transport: Transport,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        answered: Callable[[], None],
    ) -> None:
        self._traffic = traffic
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._over = answered
        self.tasks: set[asyncio.Task[None]] = set()

    def dispatch(self, call: BatchCall) -> None:
        requests = self._traffic.seal(call, self._clock())
        if not requests:
            return
        try:
            if call.single:
                future = self._send("generate", requests[0])
            else:
                future = self._send("batch_generate", m.BatchGenerateParams(requests=requests))
        except RuntimeUnavailableError as error:
            self._traffic.failed(call, m.error_from(error), self._clock())
        except (TooLargeError, CapacityError, TypeError, ValueError, RecursionError, OverflowError):
            self._one_by_one(call, requests)  # one cannot be encoded, or together they exceed a frame
        else:
            future.add_done_callback(lambda done: self._answered(call, requests, done))

    def _send(self, method: str, params: m.Message) -> asyncio.Future[Any]:
        return self._transport.send(method, params, timeout_s=self._timeout_s)

    def _answered(self, call: BatchCall, requests: list[m.GenerateParams], done: asyncio.Future[Any]) -> None:
        now_s = self._clock()
        error = done.exception()
        if error is None and isinstance(done.result(), m.BatchGenerateResult):
            self._traffic.answered(call, done.result().results, now_s)
        elif error is None:
            self._traffic.answered(call, [m.BatchItem(success=True, result=done.result())], now_s)
        elif isinstance(error, RuntimeLostError):
            return  # `worker_lost` has dealt with everything that was sent
        elif isinstance(error, InvalidRequestError) and len(requests) > 1:
            self._one_by_one(call, requests)  # one request makes the whole frame invalid
            return
        elif isinstance(error, CallTimeoutError) or len(requests) > 1:
            self._traffic.failed(call, m.error_from(error), now_s)
        else:
            self._traffic.answered(call, [m.BatchItem(success=False, error=m.error_from(error))], now_s)
        self._over()

    def _one_by_one(self, call: BatchCall, requests: list[m.GenerateParams]) -> None:
        task = asyncio.get_running_loop().create_task(self._send_singly(call, requests))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send_singly(self, call: BatchCall, requests: list[m.GenerateParams]) -> None:
        items = await asyncio.gather(*(self._item(request) for request in requests), return_exceptions=True)
        if any(isinstance(item, RuntimeLostError) for item in items):
            return
        answers = [
            item if isinstance(item, m.BatchItem) else m.BatchItem(success=False, error=m.error_from(item))
            for item in items
        ]
        self._traffic.answered(call, answers, self._clock())
        self._over()

    async def _item(self, request: m.GenerateParams) -> m.BatchItem:
        try:
            return m.BatchItem(success=True, result=await self._send("generate", request))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidRequestError(f"the request cannot be sent: {error}") from None
