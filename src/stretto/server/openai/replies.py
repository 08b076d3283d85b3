"""OpenAI's replies, for the OpenAPI document and for tests."""

from __future__ import annotations

from typing import Any, Literal

from stretto.server.openapi import ReplyModel


class PromptTokenDetails(ReplyModel):
    cached_tokens: int
    image_tokens: int
    audio_tokens: int


class CompletionTokens(ReplyModel):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(ReplyModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: CompletionTokens


class Timings(ReplyModel):
    """As in llama-server: tokens and milliseconds of the prompt and of the answer."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class FunctionCallReply(ReplyModel):
    name: str
    arguments: str


class ToolCallReply(ReplyModel):
    id: str
    type: Literal["function"]
    function: FunctionCallReply


class TopLogprob(ReplyModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobReply(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ReplyModel):
    content: list[TokenLogprobReply]
    refusal: None


class AssistantMessage(ReplyModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCallReply] | None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(ReplyModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(ReplyModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    """Identifies version and model: with equal fingerprints, equal seeds give equal answers."""
    choices: list[ChatChoice]
    usage: CompletionUsage
    timings: Timings
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None
    """Only if requested, by token id."""


class TextLogprobs(ReplyModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    """null for the first token of an echoed prompt, which has no context."""
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(ReplyModel):
    logprob: float
    rank: int | None
    """Rank among the most likely tokens."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TextChoice(ReplyModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptLogprobs | None = None
    """Only if requested, by token id."""


class TextCompletion(ReplyModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage
    timings: Timings


class TranscriptionInput(ReplyModel):
    text_tokens: int
    audio_tokens: int


class TranscriptionUsage(ReplyModel):
    type: Literal["tokens"]
    input_tokens: int
    input_token_details: TranscriptionInput
    output_tokens: int
    total_tokens: int


class Transcription(ReplyModel):
    text: str
    usage: TranscriptionUsage


class ModelReply(ReplyModel):
    """A model, with the fields of OpenAI and of Anthropic."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    parent: str | None
    """Of an adapter: the model that it changes."""
    created_at: str
    loaded: bool
    kind: str
    backend: str
    slots: int
    context_window: int
    max_model_len: int
    modalities: list[str]
    """What it takes in: text, image, audio. Empty while it is not loaded."""
    tools: str
    """How tools are shown to the model: `template`, or `system prompt` if its template ignores them."""


class ModelList(ReplyModel):
    object: Literal["list"]
    data: list[ModelReply]
    has_more: bool
    first_id: str | None
    last_id: str | None


class TokenizeReply(ReplyModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeReply(ReplyModel):
    prompt: str
    content: str


class EmbeddingUsage(ReplyModel):
    prompt_tokens: int
    total_tokens: int


class Embedding(ReplyModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(ReplyModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class RerankDocument(ReplyModel):
    text: str


class RerankItem(ReplyModel):
    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankReply(ReplyModel):
    id: str
    object: Literal["list"]
    model: str
    results: list[RerankItem]
    usage: EmbeddingUsage


class CohereReply(ReplyModel):
    id: str
    results: list[RerankItem]
    meta: dict[str, Any]


class TeiRank(ReplyModel):
    index: int
    score: float
    text: str | None = None


class AppliedTemplate(ReplyModel):
    prompt: str


class TokenizerInfo(ReplyModel):
    tokenizer_class: str
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    vocab_size: int | None


class Props(ReplyModel):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str
    """The model's name: local paths are not revealed."""
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool


class ResponseReply(ReplyModel):
    """A response. Items and the fields repeated from the request are as OpenAI documents them."""

    id: str
    object: Literal["response"]
    created_at: float
    completed_at: float | None = None
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: dict[str, Any] | None
    user: str | None
    background: bool
