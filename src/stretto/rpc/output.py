"""The output of streams as messages: text, or columns of token ids, one batch per tick and connection.

`rpc.messages` passes these names on. The socket transport sends `TokenColumns` as raw bytes
(`rpc.frames`); everything else is JSON.
"""

from __future__ import annotations

from msgspec import field

from stretto.rpc.base import Message


class Error(Message):
    """An error message; `code` is one of stretto.errors."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False


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
    proposed_drafts: int = 0
    accepted_drafts: int = 0
    image_tokens: int = 0  # of the prompt: rows of pictures
    audio_tokens: int = 0


class TimingMessage(Message):
    """Seconds since arrival, measured in the worker. Not `admitted`: it never had a slot.

    `encode_s`, a part of `queue_wait_s`: until its pictures and sounds were decoded and encoded.
    """

    queue_wait_s: float = 0.0
    ttft_s: float | None = None
    duration_s: float = 0.0
    preemptions: int = 0
    admitted: bool = True
    encode_s: float = 0.0


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


class TokenColumns(Message):
    """Tokens of one tick, as columns of little-endian 32-bit integers: `counts[i]` tokens of `numbers[i]`."""

    numbers: bytes = b""
    counts: bytes = b""
    tokens: bytes = b""


class TokenMeasure(Message, array_like=True):
    """A token's log-probability and its alternatives, by id."""

    logprob: float
    top_tokens: list[int]
    top_logprobs: list[float]


class PromptMeasures(Message, array_like=True):
    """Measures of a prompt's tokens from `start` on."""

    start: int
    measured: list[TokenMeasure | None]


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
    columns: TokenColumns | None = None  # of streams with a number; their other parts:
    measures: dict[str, list[TokenMeasure | None]] = field(default_factory=dict)
    scores: dict[str, list[PromptMeasures]] = field(default_factory=dict)
