"""Long calls with an id: embedding, reranking and tokenizing long texts.

The id lets the worker report when work on a call began, and lets a caller that stops waiting cancel it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stretto.client.api import OnStart
from stretto.client.quarantine import Quarantine, Standing
from stretto.client.transport import ATTEMPTS, Transport
from stretto.errors import RuntimeLostError, StrettoError
from stretto.rpc import messages as m
from stretto.rpc.envelope import METHODS

TURN_S = 0.05
_Params = m.EmbedParams | m.RerankParams | m.TokenizeParams | m.DetokenizeParams


class NamedCalls:
    def __init__(
        self,
        transport: Transport,
        quarantine: Quarantine,
        *,
        check: Callable[[m.Message], None],
        timeout_s: float,
        clock: Callable[[], float],
        cancel: Callable[[m.CancelParams], None],
    ) -> None:
        self._transport = transport
        self._quarantine = quarantine
        self._check = check
        self._timeout_s = timeout_s
        self._clock = clock
        self._cancel = cancel
        self._numbers = itertools.count(1)
        self._open: dict[str, OnStart | None] = {}
        self._sent: dict[str, _Params] = {}

    def __len__(self) -> int:
        return len(self._open)

    def in_flight(self) -> list[bytes]:
        """Digests of the calls that the worker is processing."""
        return [self._quarantine.digest(params) for params in self._sent.values()]

    async def call(self, method: str, params: _Params, on_start: OnStart | None) -> Any:
        """Call and wait; idempotent calls are retried once after a worker death, then as the only suspect."""
        self._check(params)
        attempts = ATTEMPTS if METHODS[method].idempotent else 1
        for left in range(attempts - 1, -1, -1):
            try:
                return await self._attempt(method, params, on_start)
            except RuntimeLostError:
                if not left:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(self, method: str, params: _Params, on_start: OnStart | None) -> Any:
        digest, passed = await self._turn(params), False
        name = f"call-{next(self._numbers)}"
        named = msgspec.structs.replace(params, call_id=name)
        self._open[name], self._sent[name] = on_start, params
        try:
            answer = await self._transport.call(method, named, timeout_s=self._timeout_s, attempts=1)
            passed = True
            return answer
        except asyncio.CancelledError:
            self._cancel(m.CancelParams(stream_id=name))
            raise
        except RuntimeLostError:
            raise
        except StrettoError:
            passed = True
            raise
        finally:
            del self._open[name], self._sent[name]
            if digest:
                self._quarantine.end_trial(digest, passed=passed)

    async def _turn(self, params: _Params) -> bytes:
        """Wait until this suspect may be tried. Empty if no worker died recently."""
        if self._quarantine.empty:
            return b""
        digest = self._quarantine.digest(params)
        while (standing := self._quarantine.standing(digest, self._clock())) is not Standing.FREE:
            if standing is Standing.REFUSED:
                raise self._quarantine.refusal(digest, self._clock())
            if self._quarantine.begin_trial(digest):
                break
            await asyncio.sleep(TURN_S)
        return digest

    def started(self, starts: Iterable[m.StreamStart]) -> None:
        """`starts` also contains starts of streams, which are ignored here."""
        for start in starts:
            on_start = self._open.get(start.stream_id)
            if on_start is not None:
                on_start(start.queue_wait_s)
