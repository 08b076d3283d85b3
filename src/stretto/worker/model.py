"""ModelRuntime: a loaded model with its loop, output, tokenizer and template behind a small interface.

Turns prompts into requests and requests into streams of deltas, which go to a sink: any callable. The SDK
uses it in the caller's process; a worker process holds several.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from stretto.backends.base import Backend
from stretto.core.limits import Limits
from stretto.core.request import Priority, Request, SamplingParams
from stretto.core.tick import Events, Started, Terminal, TickMeasures
from stretto.errors import PromptTooLongError
from stretto.rpc.text_bound import TextBound
from stretto.telemetry.measures import Measures
from stretto.telemetry.subscription import Item, Subscription
from stretto.text import bounds
from stretto.text.provenance import Segment
from stretto.text.reasoning import Tags, opened_by_prompt, tags_for
from stretto.text.templates import CHATML, ChatTemplate, Rendered
from stretto.text.token_cache import TokenCache
from stretto.text.tokenizer import PromptTokens, Tokenizer, encode_prompt, encode_text
from stretto.text.tool_prompt import fitted, tool_dialect
from stretto.text.tools import Dialect
from stretto.worker.grammars import Grammars, byte_words
from stretto.worker.inspection import SchedulerView, TickRecord
from stretto.worker.loop import EngineLoop, LoopStats
from stretto.worker.output import OutputPump
from stretto.worker.text_stream import PLAIN, Shown, TextDelta, TextStream, ToolReading


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to continue, and whether the template has already opened a reasoning block."""

    tokens: PromptTokens
    tags: Tags | None = None
    opened: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready to submit."""

    prompt: Prompt
    params: SamplingParams
    stops: tuple[str, ...] = ()
    tools: ToolReading | None = None
    priority: Priority = Priority.DEFAULT
    tenant: str = ""
    cache_salt: str = ""
    timeout_s: float | None = None
    fork_of: str = ""
    request_id: str = ""
    streamed: bool = False
    shown: Shown = PLAIN
    progress: bool = False
    held: object = None  # keeps its compiled grammar alive


@cache  # minijinja never frees an environment: one per chat would leak
def _chatml() -> ChatTemplate:
    """For models without a template."""
    return ChatTemplate(CHATML)


class ModelRuntime:
    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        limits: Limits,
        *,
        template: ChatTemplate | None = None,
        add_bos: bool = False,
        grammars: Grammars | None = None,
        beat: Callable[[int, bool], None] | None = None,
        threads: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokenizer = tokenizer
        self._token_cache = TokenCache(tokenizer)
        self.template = template
        self.limits = limits
        self.capabilities = backend.capabilities
        self._add_bos = add_bos
        self.grammars = grammars or Grammars(byte_words)
        self._clock = clock
        self._threads = threads
        self._numbers = itertools.count(1)
        self.measures = Measures()
        self._observers: tuple[Callable[[Events], None], ...] = (self.measures.take,)
        self._subscriptions: tuple[Subscription[Any], ...] = ()
        self._takers: dict[int, Callable[[Events], None]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._pump = OutputPump(self.cancel)
        self._loop = EngineLoop(backend, limits, self._deliver, clock=clock, beat=beat)
        self._pump.start()
        self._loop.start()

    @property
    def window(self) -> int:
        """Maximum tokens of one request."""
        return self.capabilities.pool_tokens

    @property
    def threads(self) -> int:
        """Threads that compute the next pass; 0 where the backend does not say."""
        return self._threads()

    @cached_property
    def text_bound(self) -> TextBound | None:
        return bounds.text_bound(self.tokenizer, self.window)

    # --- prompts ---------------------------------------------------------------------------------

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        scope: Hashable = None,
        continue_final: bool = False,
        add_generation_prompt: bool = True,
        tokens_max: int | None = None,
    ) -> Prompt:
        """`options` are the template's. Tokenized texts are cached within a scope; without a scope they are
        not.

        A text that clearly exceeds `tokens_max` tokens (default: the context window) is not tokenized.
        """
        most = self.window if tokens_max is None else tokens_max
        template = self.template or _chatml()
        shown, offered = fitted(messages, tools, template.support, self.tool_dialect)
        rendered: Rendered = template.render(
            shown,
            offered,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final,
            check=lambda text: bounds.check_text(text, self.tokenizer, most),
            **(options or {}),
        )
        bounds.check_segments(rendered.segments, self.tokenizer, most)
        tokens = encode_prompt(rendered, self._tokenizer_for(scope), add_bos=self._add_bos)
        tags = tags_for(template.source)
        return Prompt(tokens, tags, tags is not None and opened_by_prompt(rendered.tail, tags))

    @property
    def tool_dialect(self) -> Dialect:
        """How the model is told to call tools."""
        template = self.template or _chatml()
        return tool_dialect(template.source, template.support)

    @property
    def tools_shown_by(self) -> str:
        """`template`, or `system prompt` if the template ignores tools."""
        return "template" if (self.template or _chatml()).support.tools else "system prompt"

    def text_prompt(self, text: str, *, scope: Hashable = None, tokens_max: int | None = None) -> Prompt:
        most = self.window if tokens_max is None else tokens_max
        bounds.check_text(text, self.tokenizer, most)
        bounds.check_segments((Segment(text, user=True),), self.tokenizer, most)
        return Prompt(encode_text(text, self._tokenizer_for(scope), add_bos=self._add_bos))

    def _tokenizer_for(self, scope: Hashable) -> Tokenizer:
        return self.tokenizer if scope is None else self._token_cache.for_scope(scope)

    def compile_grammar(self, grammar: str, *, scope: Hashable = "") -> object:
        """May take most of a second the first time: do not call it on an event loop. Keep the result as long
        as the grammar is in use.
        """
        return self.grammars.check(grammar, scope) if grammar else None

    def check_length(self, prompt: Prompt) -> None:
        """Reject a prompt that cannot fit before it is queued, with both lengths."""
        count, window = len(prompt.tokens.tokens), self.capabilities.pool_tokens
        if count >= window:
            raise PromptTooLongError.of(count, window)

    # --- requests --------------------------------------------------------------------------------

    def new_id(self) -> str:
        return f"request-{next(self._numbers)}"

    def start(
        self,
        call: PreparedRequest,
        sink: Callable[[TextDelta], None],
        *,
        on_start: Callable[[Started], None] | None = None,
    ) -> str:
        """Register the stream, submit the request, return its id. Everything else arrives through the sink.

        `on_start` is called on the output thread when the request gets its first slot.
        """
        self.check_length(call.prompt)
        request_id = call.request_id or self.new_id()
        stream = TextStream(
            self.tokenizer,
            sink,
            lambda kept: self._loop.stop(request_id, kept),
            stops=call.stops,
            tags=call.prompt.tags,
            opened=call.prompt.opened,
            tools=call.tools,
            on_start=on_start,
            shown=call.shown,
        )
        self._pump.register(request_id, stream)
        deadline_s = None if call.timeout_s is None else self._clock() + call.timeout_s
        self._loop.submit(
            Request(
                id=request_id,
                tokens=call.prompt.tokens.tokens,
                params=self._fitting(call),
                boundaries=call.prompt.tokens.boundaries,
                priority=call.priority,
                tenant=call.tenant,
                cache_salt=call.cache_salt,
                deadline_s=deadline_s,
                fork_of=call.fork_of,
                streamed=call.streamed,
                progress=call.progress,
            )
        )
        return request_id

    def _fitting(self, call: PreparedRequest) -> SamplingParams:
        """Limit max_tokens to the room in the window, so that a grammar can close its text in time."""
        room = self.capabilities.pool_tokens - len(call.prompt.tokens.tokens)
        return call.params if call.params.max_tokens <= room else replace(call.params, max_tokens=room)

    def cancel(self, request_id: str) -> None:
        self._loop.cancel(request_id)

    # --- life ------------------------------------------------------------------------------------

    def observe(self, observer: Callable[[Events], None]) -> None:
        """Telemetry: called with every tick's events on the loop's thread. Must not block."""
        self._observers = (*self._observers, observer)

    def on_tick(self, callback: Callable[[TickMeasures], object]) -> Subscription[TickMeasures]:
        """Every tick's measurements, in order, on the subscription's own thread."""
        subscription = Subscription(callback, on_close=self._unsubscribe)

        def take(events: Events) -> None:
            if events.tick is not None:
                subscription.put(events.tick)

        return self._subscribe(subscription, take)

    def on_request_done(self, callback: Callable[[Terminal], object]) -> Subscription[Terminal]:
        """The measurements of every request at its end, successful or not."""
        subscription = Subscription(callback, on_close=self._unsubscribe)

        def take(events: Events) -> None:
            for end in events.ends:
                subscription.put(end)

        return self._subscribe(subscription, take)

    def _subscribe(
        self, subscription: Subscription[Item], take: Callable[[Events], None]
    ) -> Subscription[Item]:
        with self._lock:
            self._takers[id(subscription)] = take
            self._subscriptions = (*self._subscriptions, subscription)
            self._observers = (*self._observers, take)
        return subscription

    def _unsubscribe(self, subscription: Subscription[Any]) -> None:
        with self._lock:
            take = self._takers.pop(id(subscription), None)
            self._subscriptions = tuple(one for one in self._subscriptions if one is not subscription)
            self._observers = tuple(one for one in self._observers if one is not take)

    def after_tick(self, callback: Callable[[], None]) -> None:
        """Called on the output thread after all deltas of a tick have been delivered."""
        self._pump.after_tick(callback)

    def inspect(self) -> Future[SchedulerView]:
        return self._loop.inspect()

    def watch(self, on_tick: Callable[[TickRecord], None] | None) -> None:
        self._loop.watch(on_tick)

    @property
    def stats(self) -> LoopStats:
        return self._loop.stats

    @property
    def alive(self) -> bool:
        return self._loop.alive

    @property
    def failure(self) -> BaseException | None:
        return self._loop.failure

    def drain(self) -> None:
        self._loop.drain()

    def close(self) -> None:
        with self._closing:
            self._loop.close()
            self._pump.close()
        for subscription in self._subscriptions:
            subscription.close()
        self.grammars.close()

    def _deliver(self, events: Events) -> None:
        for observer in self._observers:
            observer(events)
        self._pump.deliver(events)
