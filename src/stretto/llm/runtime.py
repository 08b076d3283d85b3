"""What the SDK needs of a model, wherever it runs: in this process or in a worker process of its own.

Two implementations: `worker.model.ModelRuntime` and `llm.child_runtime.ChildRuntime`. Requests are submitted
and cancelled on any thread; their output arrives on one thread of the runtime, which must not be blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stretto.core.limits import Limits
from stretto.core.request import AdapterGroup
from stretto.core.tick import Terminal, TickMeasures
from stretto.telemetry.subscription import Subscription
from stretto.text.model_text import ModelText
from stretto.text.tokenizer import Tokenizer
from stretto.worker.loop import LoopStats
from stretto.worker.model import PreparedRequest
from stretto.worker.output import OutputStream, TextDelta


class Runtime(Protocol):
    """Contract: a rejection, a failure and a cancellation arrive as the end of their request's output; each
    request has exactly one end, after all of its tokens.
    """

    @property
    def text(self) -> ModelText: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def stats(self) -> LoopStats: ...

    def new_id(self) -> str: ...

    def start(self, call: PreparedRequest, sink: Callable[[TextDelta], None]) -> str:
        """Submit a request whose output goes to `sink` as text; returns its id. Never blocks."""

    def submit(self, call: PreparedRequest, stream: OutputStream) -> str:
        """As `start`, with any output stream."""

    def cancel(self, request_id: str) -> None: ...

    def adapter_group(self, wanted: Sequence[tuple[str, float | None]]) -> AdapterGroup:
        """The group of these adapters. Raises if one is unknown."""

    def compile_grammar(self, grammar: str) -> object:
        """What keeps a compiled grammar alive. May raise if it is invalid, or leave that to the request."""

    def on_tick(self, callback: Callable[[TickMeasures], object]) -> Subscription[TickMeasures]: ...

    def on_request_done(self, callback: Callable[[Terminal], object]) -> Subscription[Terminal]: ...


class OpenModel(Protocol):
    """A generating model and what was chosen for it."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def description(self) -> Mapping[str, Any]: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def drafts(self) -> int: ...

    def close(self) -> None: ...
