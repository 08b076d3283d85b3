"""One generation in a cluster: placed on a replica, and moved to another one when that replica dies.

A request that has shown nothing is sent again as it is. One that has is continued from its prompt and the
tokens so far (`GenerateParams.resumed`), where these determine the rest; its reader sees one unbroken stream.
`policy.failover` decides, this class carries it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from stretto.client.api import Delta, StoppableStream
from stretto.cluster.links import Link
from stretto.cluster.policy.failover import AfterLoss, after_loss
from stretto.errors import (
    RuntimeLostError,
    RuntimeUnavailableError,
    ShuttingDownError,
    StrettoError,
)
from stretto.rpc.messages import GenerateParams, StreamEnd, UsageMessage

LOST = (RuntimeLostError, RuntimeUnavailableError, ShuttingDownError)  # of a replica, not of the gate
NO_LIMIT = 1 << 62


class Placing(Protocol):
    """What a stream needs from the gate's client."""

    async def place(self, request_id: str, params: GenerateParams, tried: frozenset[str]) -> Link: ...

    def done(self, request_id: str) -> None:
        """The request ended or moves; "" and unknown ones are ignored."""

    def over(self, stream: ClusterStream) -> None:
        """The stream has ended, however it did."""

    def suspect(self, params: GenerateParams) -> None:
        """A replica died while this request was there and had shown nothing."""

    def cleared(self, params: GenerateParams) -> None:
        """It ended as it should."""

    def determined(self, params: GenerateParams) -> bool:
        """Whether prompt and tokens so far determine the rest: greedy, or with a seed."""

    @property
    def draining(self) -> bool: ...


class ClusterStream:
    """Implements `GenerationStream`. Belongs to the gate's event loop."""

    def __init__(
        self,
        fleet: Placing,
        params: GenerateParams,
        parent: ClusterStream | None,
        refusal: StrettoError | None,
    ) -> None:
        self.stream_id = params.stream_id
        self._fleet = fleet
        self._params = params
        self._parent = parent
        self._tokens: list[int] = []  # what the reader has got
        self._scored = 0  # prompt log-probabilities that it has got
        self._skip = 0
        self._losses = 0
        self._key = ""  # under which it was placed
        self._tried: frozenset[str] = frozenset()
        self._link: Link | None = None
        self._stream: StoppableStream | None = None
        self._stopped_at: int | None = None
        self._prompt_tokens = 0
        self._end: StreamEnd | None = None
        self._first: StreamEnd | None = None  # timing of the first replica's part
        self._started = False
        self._over = False
        self._refusal = refusal
        self._placing: asyncio.Task[None] | None = None
        if refusal is None:
            self._placing = asyncio.get_running_loop().create_task(self._place(params))

    @property
    def prompt_tokens(self) -> int:
        return (self._stream.prompt_tokens if self._stream is not None else 0) or self._prompt_tokens

    @property
    def end(self) -> StreamEnd | None:
        return self._end or (self._stream.end if self._stream is not None else None)

    @property
    def link(self) -> Link | None:
        """Where it runs now."""
        return self._link

    async def placed(self) -> StoppableStream:
        """Wait until it has a replica."""
        if self._refusal is not None:
            raise self._refusal
        if self._placing is not None:
            await asyncio.shield(self._placing)
        if self._stream is None:
            raise ShuttingDownError("the generation was cancelled")
        return self._stream

    # --- reading ---------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while not self._over:
            try:
                stream = await self.placed()
                delta = await stream.__anext__()
            except StopAsyncIteration:
                self._finish()
                raise
            except LOST as error:
                if (last := await self._lost(error)) is not None:
                    return last
                continue
            except StrettoError:
                self._finish()
                raise
            return self._seen(delta)
        raise StopAsyncIteration

    async def accepted(self) -> int:
        while True:
            try:
                stream = await self.placed()
                return await stream.accepted()
            except LOST as error:
                if await self._lost(error) is not None:
                    return self._prompt_tokens
            except StrettoError:
                self._finish()
                raise

    def stop(self, tokens_kept: int) -> None:
        """For token ids: the caller found a stop string."""
        self._stopped_at = tokens_kept
        if self._stream is not None:
            self._stream.stop(tokens_kept)

    def cancel(self) -> None:
        if self._over:
            return
        self._over = True
        if self._placing is not None and not self._placing.done():
            self._placing.cancel()
        if self._stream is not None:
            self._stream.cancel()
        self._release()
        self._fleet.over(self)

    def _seen(self, delta: Delta) -> Delta:
        """Note what the reader gets, and leave out what it has already got from another replica."""
        self._tokens += delta.tokens
        if delta.prompt_logprobs:
            skipped = min(self._skip, len(delta.prompt_logprobs))
            self._skip -= skipped
            del delta.prompt_logprobs[:skipped]
            self._scored += len(delta.prompt_logprobs)
        if delta.start is not None:
            self._prompt_tokens = delta.start.prompt_tokens
            if self._started:
                delta.start = None
            self._started = True
        if delta.end is not None:
            self._fleet.cleared(self._params)
            delta.end = self._end = self._whole(delta.end)
            self._finish()
        return delta

    def _whole(self, end: StreamEnd) -> StreamEnd:
        """The end of all parts: waits and the first token were those of the first one."""
        if self._first is None:
            return end
        timing = msgspec.structs.replace(
            end.timing,
            queue_wait_s=self._first.timing.queue_wait_s,
            ttft_s=self._first.timing.ttft_s,
            duration_s=self._first.timing.duration_s + end.timing.duration_s,
        )
        usage = msgspec.structs.replace(end.usage, cached_tokens=self._first.usage.cached_tokens)
        return msgspec.structs.replace(end, timing=timing, usage=usage)

    # --- moving ----------------------------------------------------------------------------------

    async def _place(self, params: GenerateParams) -> None:
        if self._parent is not None:
            parent_link = await self._with_parent(self._parent)
            if parent_link is not None:
                self._use(parent_link, params)
                return
            params = msgspec.structs.replace(params, fork_of="")
        self._key = f"{self.stream_id}#{self._losses}"
        link = await self._fleet.place(self._key, params, self._tried)
        self._use(link, params)

    async def _with_parent(self, parent: ClusterStream) -> Link | None:
        """The replica of the generation that this one forks; None if that one is gone."""
        self._parent = None  # once: a fork that moves later moves alone
        try:
            await parent.placed()
        except StrettoError:
            return None
        return parent.link if parent.link is not None and parent.link.alive else None

    def _use(self, link: Link, params: GenerateParams) -> None:
        link.open += 1
        self._link = link
        self._stream = link.client.generate(params if params.number else _echoing(params))

    async def _lost(self, error: StrettoError) -> Delta | None:
        """The replica died or stops. Returns the last delta if nothing is missing but the end."""
        if self._over:
            raise StopAsyncIteration
        if self._refusal is not None or (isinstance(error, ShuttingDownError) and self._fleet.draining):
            self._finish()
            raise error
        delivered = len(self._tokens)
        before = self._stream.end if self._stream is not None else None
        if self._first is None and delivered and before is not None:
            self._first = before
        if self._link is not None:
            self._tried = frozenset({self._link.target.replica_id})
            self._losses += 1
            if not delivered:
                self._fleet.suspect(self._params)
        elif self._stream is None:  # it could not be placed at all
            self._finish()
            raise error
        params = self._params
        decision = after_loss(
            delivered=delivered,
            losses=self._losses,
            determined=not params.streamed or self._fleet.determined(params),
            max_tokens=params.max_tokens or NO_LIMIT,
        )
        self._release()
        if self._stopped_at is not None:  # only the end was missing
            return self._completed("stop")
        if decision is AfterLoss.COMPLETE:
            return self._completed()
        if decision is AfterLoss.FAIL:
            self._finish()
            raise _explained(error, delivered, self._losses)
        self._stream = None
        self._placing = asyncio.get_running_loop().create_task(self._place(self._rest()))
        return None

    def _rest(self) -> GenerateParams:
        """The request, from where the reader is."""
        params = msgspec.structs.replace(self._params, fork_of="", resumed=list(self._tokens))
        if "prompt_logprobs" in params.sampling and self._tokens:  # they come before the first token
            sampling = {k: v for k, v in params.sampling.items() if k != "prompt_logprobs"}
            params = msgspec.structs.replace(params, sampling=sampling)
        self._skip = 0 if self._tokens else self._scored
        return params

    def _completed(self, reason: str = "length") -> Delta:
        kept = len(self._tokens) if self._stopped_at is None else self._stopped_at
        usage = UsageMessage(prompt_tokens=self._prompt_tokens, completion_tokens=kept)
        end = StreamEnd(stream_id=self.stream_id, finish_reason=reason, usage=usage)
        self._end = self._whole(end)
        self._finish()
        return Delta(end=self._end)

    def _release(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.open -= 1
        self._fleet.done(self._key)
        self._key = ""

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._release()
            self._fleet.over(self)


def _echoing(params: GenerateParams) -> GenerateParams:
    """With token ids, from which a text can be continued elsewhere."""
    return params if params.echo_tokens else msgspec.structs.replace(params, echo_tokens=True)


def _explained(error: StrettoError, delivered: int, losses: int) -> StrettoError:
    if not delivered:
        return RuntimeLostError(f"{losses} replicas died while they processed this request", hint=error.hint)
    return RuntimeLostError(
        f"the replica died after {delivered} tokens, which stand as they were sent",
        hint="send a seed, or temperature 0: such a text is continued on another replica",
    )
