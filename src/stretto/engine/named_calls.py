"""Calls that take long and have a name: embeddings, rankings and long texts to tokenize.

By its name the runtime tells when the work on a call began, and a caller that stops waiting stops the work.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stretto.engine.api import OnStart
from stretto.engine.transport import Transport
from stretto.rpc import messages as m

_Params = m.EmbedParams | m.RerankParams | m.TokenizeParams | m.DetokenizeParams


class NamedCalls:
    def __init__(
        self, transport: Transport, *, timeout_s: float, cancel: Callable[[m.CancelParams], None]
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._cancel = cancel
        self._numbers = itertools.count(1)
        self._open: dict[str, OnStart | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def call(self, method: str, params: _Params, on_start: OnStart | None) -> Any:
        name = f"call-{next(self._numbers)}"
        self._open[name] = on_start
        named = msgspec.structs.replace(params, call_id=name)
        try:
            return await self._transport.call(method, named, timeout_s=self._timeout_s)
        except asyncio.CancelledError:
            self._cancel(m.CancelParams(stream_id=name))
            raise
        finally:
            del self._open[name]

    def started(self, starts: Iterable[m.StreamStart]) -> None:
        """Starts of streams are among them; those are not ours."""
        for start in starts:
            on_start = self._open.get(start.stream_id)
            if on_start is not None:
                on_start(start.queue_wait_s)
