"""One generation whose text is made here: prepared on a thread if it is long, then read as token ids.

Implements `GenerationStream`. Stop strings are found when the caller reads; the worker is then told how many
tokens to keep, and what it had generated beyond them is discarded. Belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from stretto.client.api import Delta, StoppableStream
from stretto.errors import StrettoError
from stretto.rpc.messages import GenerateParams, StreamEnd, TimingMessage, error_from, exception_of
from stretto.text.model_text import ModelText, Prompt
from stretto.text.requests import PreparedText
from stretto.text_client.reader import TextReader

log = logging.getLogger("stretto.text")
Send = Callable[
    [GenerateParams, PreparedText, float], StoppableStream
]  # params, prepared text, seconds waited


class TextGeneration:
    def __init__(self, params: GenerateParams, text: ModelText, send: Send) -> None:
        self.stream_id = params.stream_id
        self.prompt: asyncio.Future[Prompt] = asyncio.get_running_loop().create_future()  # for its forks
        self._params = params
        self._text = text
        self._send = send
        self._started_s = time.monotonic()
        self._preparing: asyncio.Task[None] | None = None
        self._inner: StoppableStream | None = None
        self._reader: TextReader | None = None
        self._refusal: Exception | None = None
        self._failed = False
        self._end: StreamEnd | None = None

    # --- preparing -------------------------------------------------------------------------------

    def prepare(self, work: Callable[[], PreparedText]) -> None:
        """Prepare now: for short texts."""
        try:
            self._submit(work())
        except Exception as error:
            self._refuse(error)

    def prepare_later(self, work: Callable[[], Awaitable[PreparedText]]) -> None:
        self._preparing = asyncio.get_running_loop().create_task(self._prepare(work))

    async def _prepare(self, work: Callable[[], Awaitable[PreparedText]]) -> None:
        try:
            self._submit(await work())
        except asyncio.CancelledError:
            self.prompt.cancel()
        except Exception as error:
            self._refuse(error)

    @property
    def preparing(self) -> bool:
        return self._preparing is not None and not self._preparing.done()

    def _submit(self, prepared: PreparedText) -> None:
        waited_s = time.monotonic() - self._started_s
        self._inner = inner = self._send(self._params, prepared, waited_s)
        self._reader = TextReader(
            self._text.tokenizer, prepared, self._params, on_stop=inner.stop, waited_s=waited_s
        )
        self.prompt.set_result(prepared.prompt)

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, StrettoError):
            log.error("preparing a request failed", exc_info=error)
        self.prompt.cancel()
        message = error_from(error)
        self._refusal = exception_of(message)
        self._end = StreamEnd(
            stream_id=self.stream_id, finish_reason="error", error=message, timing=self._timing()
        )

    def _timing(self) -> TimingMessage:
        waited_s = time.monotonic() - self._started_s
        return TimingMessage(queue_wait_s=waited_s, duration_s=waited_s, admitted=False)

    # --- reading ---------------------------------------------------------------------------------

    @property
    def prompt_tokens(self) -> int:
        return 0 if self._inner is None else self._inner.prompt_tokens

    @property
    def end(self) -> StreamEnd | None:
        return self._end if self._end is not None or self._inner is None else self._inner.end

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        await self._prepared()
        inner, reader = self._inner, self._reader
        if inner is None or reader is None:
            raise StopAsyncIteration
        while True:
            if self._failed:
                raise self._taken_refusal()
            try:
                raw = await inner.__anext__()
            except StrettoError as error:
                self._failed, self._refusal = True, error
                held = reader.fail(error_from(error), inner.end)
                if held is not None:
                    return held
                continue
            delta = reader.read(raw)
            if delta is not None:
                self._end = delta.end
                return delta

    async def _prepared(self) -> None:
        if self._preparing is not None and self.preparing:
            await asyncio.wait({self._preparing})
        if self._inner is None and self._refusal is not None:
            raise self._taken_refusal()

    def _taken_refusal(self) -> Exception:
        """Raised once, then the stream is over."""
        refusal, self._refusal = self._refusal, None
        return refusal if refusal is not None else StopAsyncIteration()

    async def accepted(self) -> int:
        await self._prepared()
        return 0 if self._inner is None else await self._inner.accepted()

    def cancel(self) -> None:
        if self._inner is not None:
            self._inner.cancel()
        elif self._preparing is not None and self.preparing:
            self._preparing.cancel()
            self._end = StreamEnd(stream_id=self.stream_id, finish_reason="cancelled", timing=self._timing())
