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

from stretto.errors import StrettoError, by_code
from stretto.rpc.base import Message as Message
from stretto.rpc.media import MediaItem as MediaItem
from stretto.rpc.output import Error as Error
from stretto.rpc.output import PromptMeasures as PromptMeasures
from stretto.rpc.output import PromptProgress as PromptProgress
from stretto.rpc.output import StreamBatch as StreamBatch
from stretto.rpc.output import StreamEnd as StreamEnd
from stretto.rpc.output import StreamStart as StreamStart
from stretto.rpc.output import TimingMessage as TimingMessage
from stretto.rpc.output import TokenColumns as TokenColumns
from stretto.rpc.output import TokenLogprob as TokenLogprob
from stretto.rpc.output import TokenMeasure as TokenMeasure
from stretto.rpc.output import ToolCallDelta as ToolCallDelta
from stretto.rpc.output import UsageMessage as UsageMessage
from stretto.rpc.stats import AdapterStats as AdapterStats
from stretto.rpc.stats import BatchTelemetry as BatchTelemetry
from stretto.rpc.stats import EncodeEvent as EncodeEvent
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
    "stop",
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
    media: list[MediaItem] = field(default_factory=list)  # with messages or tokens
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
    lora: list[tuple[str, float | None]] = field(default_factory=list)  # adapters; None: their own scale
    prediction: str = ""  # text that the answer may repeat: a source of drafts
    priority: PriorityName = "default"
    tenant: str = ""
    cache_salt: str = ""
    deadline_ms: float | None = None
    fork_of: str = ""  # stream id of a generation with the same prompt (n > 1)
    echo_tokens: bool = False  # send token ids with the text
    resumed: list[int] = field(default_factory=list)  # generated by another worker: go on after them
    streamed: bool = False  # the caller reads the text while it is generated
    request_id: str = ""  # the HTTP request's id, for logs and traces; streams may share it
    number: int = 0
    """Not 0: token ids only. The prompt is `tokens`; the output arrives in `StreamBatch.columns` under this
    number, which is unique among the connection's open streams. The caller makes the text."""
    boundaries: list[int] = field(default_factory=list)  # with a number: offsets at which messages end
    grammar: str = ""  # with a number: guidance, as `text.guidance` has converted it

    @property
    def guidance_mode(self) -> str:
        return self.guidance.mode if self.guidance is not None else ""


class GenerateResult(Message):
    """The generation was accepted: its tokens and its end follow in `stream.batch`."""

    stream_id: str
    prompt_tokens: int


class BatchGenerateParams(Message):
    """`rpc.batches` decodes it entry by entry, so that an invalid entry fails alone."""

    requests: list[GenerateParams]


class BatchItem(Message):
    success: bool
    result: GenerateResult | None = None
    error: Error | None = None


class BatchGenerateResult(Message):
    results: list[BatchItem]


class StopParams(Message):
    """A stop string ended the text of a stream after this many tokens; unknown streams are ignored."""

    stream_id: str
    tokens_kept: int


class CancelParams(Message):
    stream_id: str  # or the call_id of an embed or rerank


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


class TextSource(Message):
    """Where a caller finds a model's tokenizer and template, to make its text without its weights.

    `kind`: spelling (the simulated model, random weights), huggingface (a folder), gguf (a file, read by us)
    or llamacpp (a file, read by llama.cpp).
    """

    kind: Literal["spelling", "huggingface", "gguf", "llamacpp"]
    path: str = ""
    vocab: int = 0  # width of the logits
    template: str | None = None
    add_bos: bool = False
    bos: int | None = None
    eos: list[int] = field(default_factory=list)
    window: int = 0  # maximum tokens of one request


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
    text: TextSource | None = None  # for callers that make the text themselves
    adapters: list[str] = field(default_factory=list)
    modalities: list[str] = field(
        default_factory=list
    )  # what it takes in: text, image, audio; empty: not known
    asked_adapter: str = ""  # set by the server's catalog: the adapter in the name that a caller asked for


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
    if isinstance(failure, StrettoError):
        return Error(
            code=failure.code, message=failure.message, hint=failure.hint, retryable=failure.retryable
        )
    return Error(code=StrettoError.code, message="internal error in the worker; see its log")


def raise_error(error: Error) -> None:
    """Raise the exception that a message describes."""
    raise exception_of(error)


def exception_of(error: Error) -> StrettoError:
    return by_code(error.code)(error.message, hint=error.hint)


def to_builtins(message: Message) -> Any:
    return msgspec.to_builtins(message)
