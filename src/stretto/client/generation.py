"""One generation as seen by its reader: an async iterator over deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from stretto.client.api import Delta
from stretto.client.streams import StreamRegistry
from stretto.client.traffic import Ticket
from stretto.rpc.messages import Error, Message, StopParams, StreamEnd, exception_of


class Generation:
    """Implements `GenerationStream`. Belongs to the client's event loop."""

    def __init__(
        self,
        stream_id: str,
        registry: StreamRegistry,
        leave: Callable[[Ticket], None],
        tell: Callable[[str, Message], None],
        *,
        reading: Callable[[], None] = lambda: None,  # called before each delta
    ) -> None:
        self.stream_id = stream_id
        self._registry = registry
        self._leave = leave
        self._reading = reading
        self._tell = tell
        self._ticket: Ticket | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._end: StreamEnd | None = None

    def bind(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def ticket(self) -> Ticket:
        assert self._ticket is not None, "a generation is bound before it is returned"
        return self._ticket

    @property
    def prompt_tokens(self) -> int:
        return self.ticket.prompt_tokens or 0

    @property
    def end(self) -> StreamEnd | None:
        return self.ticket.stream.end

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while self._end is None:
            delta = self._registry.read(self.ticket.stream)
            if delta is None:
                await self._wait()
                self._reading()
                continue
            self._end = delta.end
            if delta.end is not None and delta.end.error is not None:
                if not _says_something(delta):
                    break
                delta.end = None  # deliver what arrived before the failure; raise on the next read
            return delta
        return self._after_end()

    def _after_end(self) -> Delta:
        error = self._end.error if self._end is not None else None
        if error is None:
            raise StopAsyncIteration
        assert self._end is not None
        self._end = StreamEnd(stream_id=self.stream_id, finish_reason="error")  # raised once, then over
        raise exception_of(error)

    async def accepted(self) -> int:
        self.ticket.awaited = True
        while self.ticket.prompt_tokens is None:
            end = self.ticket.stream.end
            if end is not None and end.error is not None:
                self._refused(end.error)
            if end is not None:
                return end.usage.prompt_tokens
            await self._wait()
        return self.ticket.prompt_tokens

    def _refused(self, error: Error) -> None:
        """`accepted` raised this error, so the caller does not iterate: close the stream."""
        delta = self._registry.read(self.ticket.stream)
        if delta is not None:
            self._end = delta.end
        raise exception_of(error)

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    # --- without a task for each reader ----------------------------------------------------------

    def read_with(self, wake: Callable[[], None], *, wake_tokens: int) -> None:
        """Call `wake` on the event loop when `wake_tokens` are unread, and at the end; then `take`."""
        stream = self.ticket.stream
        stream.wake, stream.wake_tokens = wake, wake_tokens
        if stream.readable:
            wake()

    def take(self) -> Delta | None:
        """What is unread, errors as part of the end; None if there is nothing."""
        return self._registry.read(self.ticket.stream)

    def cancel(self) -> None:
        self._leave(self.ticket)

    def stop(self, tokens_kept: int) -> None:
        """The caller found a stop string: end as finished after this many tokens. The end still follows."""
        self._tell("stop", StopParams(stream_id=self.stream_id, tokens_kept=tokens_kept))


def _says_something(delta: Delta) -> bool:
    return bool(
        delta.text
        or delta.reasoning
        or delta.tool_calls
        or delta.logprobs
        or delta.tokens
        or delta.prompt_logprobs
        or delta.scores
    )
