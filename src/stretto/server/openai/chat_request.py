"""The body of /v1/chat/completions, and the generation it asks for."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import GenerateParams
from stretto.server.caller import Caller
from stretto.server.fields import (
    N_MAX,
    TOP_LOGPROBS_MAX,
    Body,
    Extensions,
    Ignored,
    MaxTokens,
    ModelName,
    Sampling,
    Stops,
    only,
)
from stretto.server.openai.messages import Messages, plain_messages
from stretto.server.openai.tools import (
    Guided,
    NamedChoice,
    ResponseFormat,
    ToolChoice,
    Tools,
    guidance_of,
    guidance_of_format,
    tool_use,
)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TemplateText = Annotated[str, Field(max_length=64)]


class StreamOptions(Body):
    where: ClassVar[str] = "stream_options"
    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class TemplateOptions(Body):
    """What a chat template may be told. Others are refused: a template is code."""

    where: ClassVar[str] = "chat_template_kwargs"

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: TemplateText | None = None
    preserve_thinking: bool | None = None
    date_string: TemplateText | None = None


class Unsupported(Body):
    """Fields of OpenAI's API that cannot be honoured here. Only null is accepted."""

    audio: None = None
    """Audio is not supported."""
    functions: None = None
    """Use tools."""
    function_call: None = None
    """Use tool_choice."""
    web_search_options: None = None
    """There is no web search here."""
    verbosity: None = None
    """Ask for it in the prompt."""
    draft_model: None = None
    """A second model cannot be chosen by a request."""
    prompt_embeds: None = None
    """Send text or token ids."""
    logits_processors: None = None
    """A request cannot bring code."""


class Harmless(Body):
    """Fields that change nothing that we do."""

    user: Ignored = None
    store: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prediction: Ignored = None


class ChatRequest(Harmless, Unsupported, Guided, Sampling, Extensions):
    messages: Messages
    model: ModelName | None = None
    """Left out: the model that the server serves by default."""
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    """The same as max_tokens, by its newer name."""
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    """Streams: the timings so far in every chunk, not only in the last one."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: TemplateOptions | None = None
    modalities: only(["text"]) = None  # type: ignore[valid-type]

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def params(self, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        """Everything that this request says about its generation. What contradicts itself is refused."""
        self._check()
        choice = self.tool_choice
        use = tool_use(
            None if self.tools is None else [tool.plain() for tool in self.tools],
            choice.model_dump() if isinstance(choice, NamedChoice) else choice,
            parallel=self.parallel_tool_calls is not False,
        )
        shape = guidance_of_format(self.response_format)
        sampling = self.sampling()
        if self.logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            messages=plain_messages(self.messages),
            tool_use=use,
            template_options=self._template_options(),
            sampling=sampling,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stops=list(self.stop or ()),
            stop_token_ids=list(self.stop_token_ids or ()),
            guidance=guidance_of(self, shape, "response_format", use),
            priority=caller.priority(self.priority),
            tenant=caller.tenant,
            cache_salt=self.cache_salt or "",
            deadline_ms=self.deadline_ms,
            streamed=bool(self.stream),
        )

    def _check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidFieldError("is for streams", param="stream_options", hint="send stream: true")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidFieldError("needs logprobs: true", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise InvalidFieldError("contradicts max_completion_tokens", param="max_tokens")
        if self.parallel_tool_calls is not None and not self.tools:
            raise InvalidFieldError("needs tools", param="parallel_tool_calls")

    def _template_options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            found = thinking_options(self.reasoning_effort)
        if self.chat_template_kwargs is not None:
            found |= self.chat_template_kwargs.model_dump(exclude_none=True)
        return found


def thinking_options(effort: str) -> dict[str, Any]:
    """What chat templates call it: some know a switch, some a level."""
    return {"enable_thinking": effort != "none", "reasoning_effort": effort}
