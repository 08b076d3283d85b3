"""ChildRuntime: the requests of the SDK, sent to a worker process as token ids.

Callers only append to a mailbox; everything else happens on the thread of the client's event loop, which is
woken once for many requests. It also makes the text, with the same `TextStream` as a model in this process.
Requests that are not streamed are read a few dozen tokens at a time: the cost per token is a list append.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stretto.backends.adapters import AdapterStore
from stretto.client.api import Delta
from stretto.client.generation import Generation
from stretto.client.rpc_client import RpcClient
from stretto.core.limits import Limits
from stretto.core.request import AdapterGroup
from stretto.core.tick import End, PromptScores, Terminal, TickMeasures
from stretto.errors import AdapterNotFoundError, InvalidRequestError, ShuttingDownError, StrettoError
from stretto.llm.wire import generate_params, loop_stats
from stretto.rpc.messages import GenerateParams, ModelStats
from stretto.telemetry.subscription import Subscription
from stretto.text.model_text import ModelText
from stretto.text.tokenizer import Tokenizer
from stretto.text_client.reader import terminal_of
from stretto.worker.loop import LoopStats
from stretto.worker.model import PreparedRequest, text_stream
from stretto.worker.output import OutputStream, TextDelta

READ_TOKENS = 32  # of a request that is not streamed: text is made of so many at once
log = logging.getLogger("stretto.llm")


class _Running:
    """One request that has not ended. Belongs to the event loop."""

    __slots__ = ("generation", "output")

    def __init__(self, generation: Generation, output: OutputStream) -> None:
        self.generation = generation
        self.output = output


class ChildRuntime:
    """`ask_stats` blocks until the worker has answered. `adapters` only checks names and scales."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: RpcClient,
        text: ModelText,
        limits: Limits,
        *,
        adapters: AdapterStore[Any] | None,
        ask_stats: Callable[[], ModelStats],
    ) -> None:
        self.text = text
        self.limits = limits
        self._loop = loop
        self._client = client
        self._adapters = adapters
        self._ask_stats = ask_stats
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._mail: deque[Callable[[], None]] = deque()
        self._posted = False
        self._closed = False
        self._running: dict[str, _Running] = {}
        self._readable: list[str] = []
        self._subscriptions: tuple[Subscription[Terminal], ...] = ()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def stats(self) -> LoopStats:
        return loop_stats(self._ask_stats())

    def adapter_group(self, wanted: Sequence[tuple[str, float | None]]) -> AdapterGroup:
        if not wanted:
            return ()
        if self._adapters is None:
            raise AdapterNotFoundError("the model has no adapters", hint="list them under `adapters`")
        return self._adapters.group(wanted)

    def compile_grammar(self, grammar: str) -> object:
        """The worker compiles it; an invalid one ends its request."""
        return None

    # --- requests, from any thread ---------------------------------------------------------------

    def new_id(self) -> str:
        return f"request-{next(self._ids)}"

    def start(self, call: PreparedRequest, sink: Callable[[TextDelta], None]) -> str:
        request_id = call.request_id or self.new_id()
        output = text_stream(self.tokenizer, call, sink, on_stop=partial(self._stop, request_id))
        return self._submit(call, output, request_id)

    def submit(self, call: PreparedRequest, stream: OutputStream) -> str:
        return self._submit(call, stream, call.request_id or self.new_id())

    def _submit(self, call: PreparedRequest, output: OutputStream, request_id: str) -> str:
        self.text.check_length(call.prompt)
        params = generate_params(
            call, stream_id=request_id, number=next(self._numbers), eos=self.tokenizer.eos
        )
        at_once = call.streamed or bool(call.stops)
        self._post(partial(self._begin, params, output, 1 if at_once else READ_TOKENS))
        return request_id

    def cancel(self, request_id: str) -> None:
        if not self._closed:
            self._post(partial(self._cancel, request_id))

    def _post(self, work: Callable[[], None]) -> None:
        if self._closed:
            raise ShuttingDownError("the model is closed")
        self._mail.append(work)
        if not self._posted:
            self._posted = True
            with contextlib.suppress(RuntimeError):  # closed meanwhile: its thread reads the mail once more
                self._loop.call_soon_threadsafe(self._read_mail)

    # --- on the event loop -----------------------------------------------------------------------

    def _read_mail(self) -> None:
        self._posted = False
        while self._mail:
            self._mail.popleft()()

    def _begin(self, params: GenerateParams, output: OutputStream, wake_tokens: int) -> None:
        if self._closed:
            output.finish(_closed_end(params.stream_id))
            return
        generation = self._client.generate(params)
        self._running[params.stream_id] = _Running(generation, output)
        generation.read_with(partial(self._wake, params.stream_id), wake_tokens=wake_tokens)

    def _wake(self, request_id: str) -> None:
        """Called while a frame is read: its other parts follow, so the request is read afterwards."""
        if not self._readable:
            self._loop.call_soon(self.read)
        self._readable.append(request_id)

    def read(self) -> None:
        """Read all requests that have something."""
        readable, self._readable = self._readable, []
        for request_id in readable:
            running = self._running.get(request_id)
            delta = None if running is None else running.generation.take()
            if running is None or delta is None:
                continue
            try:
                _deliver(running.output, delta)
            except Exception:  # its sink failed: only this request ends
                log.exception("the output of a stream failed; it is cancelled")
                running.output.broken = True
                running.generation.cancel()
            if delta.end is not None:
                self._end(request_id, running.output, terminal_of(delta.end))

    def _end(self, request_id: str, output: OutputStream, terminal: Terminal) -> None:
        del self._running[request_id]
        try:
            output.finish(terminal)
        except Exception:
            log.exception("the end of a stream could not be delivered")
        for subscription in self._subscriptions:
            subscription.put(terminal)

    def _cancel(self, request_id: str) -> None:
        if (running := self._running.get(request_id)) is not None:
            running.generation.cancel()

    def _stop(self, request_id: str, tokens_kept: int) -> None:
        """A stop string ended the text after this many tokens. Called while the request is read."""
        self._running[request_id].generation.stop(tokens_kept)

    # --- telemetry and life ----------------------------------------------------------------------

    def on_tick(self, callback: Callable[[TickMeasures], object]) -> Subscription[TickMeasures]:
        raise InvalidRequestError(
            "on_tick needs the model in this process: it runs in a worker process",
            hint="LLM(…, own_process=False)",
        )

    def on_request_done(self, callback: Callable[[Terminal], object]) -> Subscription[Terminal]:
        subscription = Subscription(callback, on_close=self._unsubscribe)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def _unsubscribe(self, subscription: Subscription[Terminal]) -> None:
        self._subscriptions = tuple(one for one in self._subscriptions if one is not subscription)

    def end_all(self) -> None:
        """On the event loop's thread, after the client was closed: end what is left, accept nothing more."""
        self._closed = True
        self._read_mail()
        self.read()
        for request_id, running in list(self._running.items()):
            self._end(request_id, running.output, _closed_end(request_id))

    def close_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()


def _deliver(output: OutputStream, delta: Delta) -> None:
    for scores in delta.scores:
        output.score(PromptScores(scores.start, list(scores.measured)))
    if delta.measures:  # one delta for each token, as a tick would have made
        for token, measure in zip(delta.tokens, delta.measures, strict=False):
            output.push(array("i", (token,)), None if measure is None else [measure])
    elif delta.tokens:
        output.push(array("i", delta.tokens), None)


def _closed_end(request_id: str) -> Terminal:
    error: StrettoError = ShuttingDownError("the model was closed")
    return Terminal(request_id, End.FAILED, error.code, 0, 0, 0, 0, 0, 0.0, 0.0, None, error=error)
