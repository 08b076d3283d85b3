"""Streams of the SDK, synchronous and asynchronous. Closing a stream early cancels its request."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from types import TracebackType

from stretto.llm.results import Completion, assemble
from stretto.llm.runtime import Runtime
from stretto.worker.model import PreparedRequest
from stretto.worker.output import TextDelta


class _Reading:
    """Deltas read so far, and whether the request can still be cancelled."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen: list[TextDelta] = []
        self.completion: Completion | None = None
        self.request_id = ""

    def take(self, delta: TextDelta) -> bool:
        """Keep a delta. False if it carries only the end. Raises if the request failed."""
        self._seen.append(delta)
        if delta.end is None:
            return True
        self.completion = assemble(self._seen)
        if self.completion.error is not None:
            raise self.completion.error
        return bool(delta.text or delta.reasoning)

    def leave(self) -> None:
        if self.completion is None and self.request_id:
            self._runtime.cancel(self.request_id)


class Stream:
    """Deltas of one request as they arrive. `completion` is set once the last delta has been read."""

    def __init__(self, runtime: Runtime, call: PreparedRequest) -> None:
        self._deltas: queue.SimpleQueue[TextDelta] = queue.SimpleQueue()
        self._reading = _Reading(runtime)
        self.request_id = self._reading.request_id = runtime.start(call, self._deltas.put)

    @property
    def completion(self) -> Completion | None:
        return self._reading.completion

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> TextDelta:
        if self.completion is not None:
            raise StopIteration
        delta = self._deltas.get()
        if not self._reading.take(delta):
            raise StopIteration
        return delta

    def read(self) -> Completion:
        """Read to the end."""
        for _ in self:
            pass
        assert self.completion is not None
        return self.completion

    def close(self) -> None:
        """Stop generating; the slot is free within one tick."""
        self._reading.leave()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_reading"):
            self.close()


class AsyncStream:
    """`Stream` for an event loop."""

    def __init__(self, runtime: Runtime, call: PreparedRequest) -> None:
        loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[TextDelta] = asyncio.Queue()
        self._reading = _Reading(runtime)
        sink = _into(loop, self._deltas.put_nowait, on_closed=self._reading.leave)
        self.request_id = self._reading.request_id = runtime.start(call, sink)

    @property
    def completion(self) -> Completion | None:
        return self._reading.completion

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> TextDelta:
        if self.completion is not None:
            raise StopAsyncIteration
        try:
            delta = await self._deltas.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if not self._reading.take(delta):
            raise StopAsyncIteration
        return delta

    async def read(self) -> Completion:
        """Read to the end."""
        async for _ in self:
            pass
        assert self.completion is not None
        return self.completion

    def close(self) -> None:
        self._reading.leave()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_reading"):
            self.close()


def _into(
    loop: asyncio.AbstractEventLoop, put: Callable[[TextDelta], None], *, on_closed: Callable[[], None]
) -> Callable[[TextDelta], None]:
    """A sink for the output thread. Deltas that come after the loop was closed have no reader."""

    def sink(delta: TextDelta) -> None:
        try:
            loop.call_soon_threadsafe(put, delta)
        except RuntimeError:
            on_closed()

    return sink
