"""The messages between client and worker, as typed values.

Calls name a method and carry one of the `…Params`; answers carry the matching `…Result` or an `Error`. Output
is sent as `StreamBatch`: one notification per tick for all streams of a connection. Only the socket transport
encodes; within one process the values themselves are passed.
"""

# ruff: noqa: PLC0414 - an alias to the same name is how a module passes a name on

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import field

from stretto.rpc.base import Message as Message
from stretto.rpc.stats import BatchTelemetry as BatchTelemetry
from stretto.rpc.stats import EngineEvents as EngineEvents
from stretto.rpc.stats import HistogramStats as HistogramStats
from stretto.rpc.stats import ModelStats as ModelStats
from stretto.rpc.stats import SlotInfo as SlotInfo
from stretto.rpc.stats import Stats as Stats
from stretto.rpc.stats import TickEvent as TickEvent
from stretto.rpc.stats import TickSpan as TickSpan
from stretto.rpc.text_bound import TextBound as TextBound

PROTOCOL_VERSION = 1
CAPABILITIES = (
    "generate",
    "batch_generate",
    "cancel",
    "tokenize",
    "detokenize",
    "batch_tokenize",
    "embed",
    "rerank",
    "watch",
)

PriorityName = Literal["urgent", "default", "background"]
GuidanceMode = Literal["json_object", "json_schema", "regex", "grammar"]


class Guidance(Message):
    mode: GuidanceMode
    value: Any = None  # the schema, the pattern or the grammar


class ToolUse(Message):
    """The tools offered, and how the model may use them."""

    tools: list[dict[str, Any]]
    choice: str | dict[str, Any] = "auto"  # none | auto | required | {type: function, function: {name}}
    parallel: bool = True


class GenerateParams(Message):
    """One generation. Exactly one of `messages`, `prompt`, `tokens` and `pieces` is given.

    `sampling` takes the fields of `core.request.SamplingParams` except max_tokens, stop_token_ids and
    grammar; missing fields get the worker's defaults. `deadline_ms` counts from when the worker reads the
    call.
    """

    stream_id: str
    model_id: str = ""  # "": the default model
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    tokens: list[int] | None = None
    pieces: list[str | int] | None = None  # one prompt made of texts and token ids
    tool_use: ToolUse | None = None
    template_options: dict[str, Any] = field(default_factory=dict)  # e.g. enable_thinking
    continue_final: bool = False  # the last message is the start of the answer
    add_generation_prompt: bool = True
    truncate_prompt_tokens: int | None = None  # keep the last n tokens; -1: as many as fit the window
    truncate_messages: bool = False  # drop the oldest messages if the conversation is too long
    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stops: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    guidance: Guidance | None = None
    bias_texts: list[tuple[str, float]] = field(default_factory=list)  # logit_bias for every token of a text
    show_control: bool = False  # include generated control tokens in the text
    include_stop: bool = False  # include the matched stop string in the text
    progress: bool = False  # report prefill progress
    draft_model: str = ""  # reserved: rejected
    priority: PriorityName = "default"
    tenant: str = ""
    cache_salt: str = ""
    deadline_ms: float | None = None
    fork_of: str = ""  # stream id of a generation with the same prompt (n > 1)
    echo_tokens: bool = False  # send token ids with the text
    streamed: bool = False  # the caller reads the text while it is generated
    request_id: str = ""  # the HTTP request's id, for logs and traces; streams may share it

    @property
    def guidance_mode(self) -> str:
        return self.guidance.mode if self.guidance is not None else ""


class GenerateResult(Message):
    """The generation was accepted: its tokens and its end follow in `stream.batch`."""

    stream_id: str
    prompt_tokens: int


class Error(Message):
    """An error message; `code` is one of stretto.errors."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False


class BatchGenerateParams(Message):
    """`rpc.batches` decodes it entry by entry, so that an invalid entry fails alone."""

    requests: list[GenerateParams]


class BatchItem(Message):
    success: bool
    result: GenerateResult | None = None
    error: Error | None = None


class BatchGenerateResult(Message):
    results: list[BatchItem]


class CancelParams(Message):
    stream_id: str  # or the call_id of an embed or rerank


class ToolCallDelta(Message):
    """A tool call or part of one: the first part has the name, the last one is `done`.

    `arguments` is a JSON string, or the next piece of it.
    """

    index: int
    name: str
    arguments: str
    done: bool = True


class TokenLogprob(Message):
    """One generated token, its log-probability, and the most likely alternatives."""

    token: str
    token_id: int
    logprob: float
    raw: bytes = b""
    top: list[tuple[str, int, float, bytes]] = field(default_factory=list)  # text, id, logprob, bytes


class UsageMessage(Message):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


class TimingMessage(Message):
    """Seconds since arrival, measured in the worker. Not `admitted`: it never had a slot."""

    queue_wait_s: float = 0.0
    ttft_s: float | None = None
    duration_s: float = 0.0
    parks: int = 0
    admitted: bool = True


class StreamStart(Message):
    """A stream got its first slot. Sent before its prefill, so that every end has a queue time."""

    stream_id: str
    queue_wait_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0


class StreamEnd(Message):
    """The end of a stream. `finish_reason`: stop | length | tool_calls | cancelled | error."""

    stream_id: str
    finish_reason: str
    error: Error | None = None
    stop: str | None = None  # the stop string that ended it
    usage: UsageMessage = field(default_factory=UsageMessage)
    timing: TimingMessage = field(default_factory=TimingMessage)


class PromptProgress(Message):
    """Prefill progress; `cached` tokens came from the prefix cache."""

    computed: int
    total: int
    cached: int = 0
    time_s: float = 0.0  # since the request was accepted


class StreamBatch(Message):
    """Output of one tick for all streams of a connection. Columns: `texts[i]` belongs to `streams[i]`.

    `starts` are sent in a separate batch, before the pass of the tick that admitted them.

    Sparse parts are keyed by stream id. Ends apply after the texts of the same batch.
    """

    streams: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # tokens of each text
    reasoning: dict[str, str] = field(default_factory=dict)
    tool_calls: dict[str, list[ToolCallDelta]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)  # only with echo_tokens
    starts: list[StreamStart] = field(default_factory=list)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """Log-probabilities of the prompt's tokens, in order; 0 for the first, which has no context."""
    progress: dict[str, PromptProgress] = field(default_factory=dict)
    ends: list[StreamEnd] = field(default_factory=list)


class TokenizeParams(Message):
    model_id: str = ""
    text: str | None = None
    messages: list[dict[str, Any]] | None = None  # rendered with the template
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    add_generation_prompt: bool = True
    special: bool = False
    tenant: str = ""
    call_id: str = ""  # for `cancel`


class TokenizeResult(Message):
    tokens: list[int]


class DetokenizeParams(Message):
    tokens: list[int]
    model_id: str = ""
    tenant: str = ""
    call_id: str = ""  # for `cancel`


class DetokenizeResult(Message):
    text: str


class TokenCall(Message):
    """One entry of `batch_tokenize`: exactly one of the two fields."""

    tokenize: TokenizeParams | None = None
    detokenize: DetokenizeParams | None = None


class BatchTokenizeParams(Message):
    calls: list[TokenCall]


class TokenAnswer(Message):
    """The answer that a separate call would have returned."""

    tokens: list[int] | None = None
    text: str | None = None
    error: Error | None = None


class BatchTokenizeResult(Message):
    results: list[TokenAnswer]


class EmbedParams(Message):
    inputs: Sequence[str | list[int]]  # texts or token ids
    model_id: str = ""
    dimensions: int | None = None
    truncate: Literal["", "left", "right"] = ""
    normalize: bool = True
    priority: PriorityName = "default"
    tenant: str = ""
    deadline_ms: float | None = None
    call_id: str = ""  # for `cancel`


class EmbedResult(Message):
    """`vectors`: little-endian float32, concatenated."""

    vectors: bytes
    width: int
    prompt_tokens: int


class RerankParams(Message):
    query: str
    documents: list[str]
    model_id: str = ""
    raw_scores: bool = False
    truncate: Literal["", "left", "right"] = ""
    priority: PriorityName = "default"
    tenant: str = ""
    deadline_ms: float | None = None
    call_id: str = ""  # for `cancel`


class RerankResult(Message):
    scores: list[float]
    prompt_tokens: int


class ModelInfo(Message):
    """A model that the worker serves or can load."""

    id: str
    kind: str = ""  # dense | moe | hybrid | recurrent | embedding | reranker
    loaded: bool = False
    loading: bool = False
    busy: bool = False
    backend: str = ""
    slots: int = 0
    context_window: int = 0
    text_bound: TextBound | None = None  # None: no bound from the length in bytes
    memory_bytes: int = 0
    description: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, Any] = field(
        default_factory=dict
    )  # bos_token, eos_token, vocab_size, chat_template


class WorkerInfo(Message):
    version: str
    protocol: int
    pid: int
    capabilities: list[str]
    models: list[ModelInfo]


class LoadParams(Message):
    model_id: str = ""


class LoadProgress(Message):
    """Notification `model.progress`, while a model is prepared and loaded."""

    model_id: str
    stage: str
    fraction: float


class Empty(Message):
    """No parameters or no result."""


class AuthParams(Message):
    """The first call on a TCP connection: the content of the token file."""

    token: str


class ModelResult(Message):
    model: ModelInfo


class WatchParams(Message):
    """Subscribe to `engine.events` notifications (the dashboard); `enabled: false` unsubscribes."""

    enabled: bool = True


def error_from(failure: BaseException) -> Error:
    """The message for an exception. Foreign exceptions become an internal error without details."""
    from stretto.errors import StrettoError

    if isinstance(failure, StrettoError):
        return Error(
            code=failure.code, message=failure.message, hint=failure.hint, retryable=failure.retryable
        )
    return Error(code=StrettoError.code, message="internal error in the worker; see its log")


def raise_error(error: Error) -> None:
    """Raise the exception that a message describes."""
    raise exception_of(error)


def exception_of(error: Error) -> Exception:
    from stretto.errors import by_code

    return by_code(error.code)(error.message, hint=error.hint)


def to_builtins(message: Message) -> Any:
    return msgspec.to_builtins(message)
