"""The body of /v1/chat/completions, and its conversion to generation parameters."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import GenerateParams, ToolUse
from stretto.server.http.caller import Caller
from stretto.server.http.fields import (
    N_MAX,
    TOP_LOGPROBS_MAX,
    Body,
    Ignored,
    MaxTokensOrAll,
    ModelName,
    Stops,
    not_honoured,
    only,
)
from stretto.server.openai.compat import Generating, OpenAIThinking
from stretto.server.openai.messages import Messages, TextPartOnly, plain_messages
from stretto.server.openai.streamed import Streamed
from stretto.server.openai.tools import (
    ChatAllowedChoice,
    ChatNamedChoice,
    ResponseFormat,
    ToolChoice,
    Tools,
    allowed_only,
    guidance_of,
    guidance_of_format,
    tool_use,
)

_CONTINUE = "continue_final_message"
PREDICTION_CHARACTERS_MAX = 1 << 18
TemplateText = Annotated[str, Field(max_length=64)]

PredictedText = Annotated[str, Field(max_length=PREDICTION_CHARACTERS_MAX)]


class TemplateOptions(Body):
    """Variables that requests may pass to a chat template. A template is code: nothing else is passed."""

    where: ClassVar[str] = "chat_template_kwargs"

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: TemplateText | None = None
    preserve_thinking: bool | None = None
    date_string: TemplateText | None = None


class Unsupported(Body):
    """Unsupported fields of OpenAI's API. Only null is accepted."""

    audio: None = None
    """Audio is not supported."""
    functions: None = None
    """Use tools."""
    function_call: None = None
    """Use tool_choice."""
    web_search_options: None = None
    """Web search is not supported."""


class Harmless(Body):
    """Fields without effect."""

    user: Ignored = None
    store: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    verbosity: not_honoured() = None  # type: ignore[valid-type]


class PredictedContent(Body):
    """Text that the answer will largely repeat, such as a file to be edited."""

    where: ClassVar[str] = "prediction"

    type: Literal["content"]
    content: PredictedText | Annotated[list[TextPartOnly], Field(max_length=64)]

    @property
    def text(self) -> str:
        parts = self.content if isinstance(self.content, list) else ()
        return self.content if isinstance(self.content, str) else "".join(part.text for part in parts)


class ChatRequest(Harmless, Unsupported, OpenAIThinking, Streamed, Generating):
    messages: Messages
    model: ModelName | None = None
    """Default: the server's default model."""
    max_tokens: MaxTokensOrAll = None
    """-1: as many as fit."""
    max_completion_tokens: MaxTokensOrAll = None
    """Newer name of max_tokens."""
    n_predict: MaxTokensOrAll = None
    """llama-server's name of max_tokens."""
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    stop: Stops | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    """vLLM's: log-probabilities of the prompt's tokens, with this many alternatives each."""
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    """false: the prompt ends with the last message."""
    continue_final_message: bool | None = None
    """Continue the last message. Default: true if it is the assistant's."""
    chat_template_kwargs: TemplateOptions | None = None
    prediction: PredictedContent | None = None
    """Source of draft tokens, where the model's `speculation` is on; the answer is the same without it."""
    modalities: only(["text"]) = None  # type: ignore[valid-type]

    def params(self, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        """The generation parameters of this request. Raises on contradictions."""
        self._check()
        use = self._tool_use()
        shape = guidance_of_format(self.response_format)
        sampling = self.sampling()
        if self.logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        if self.prompt_logprobs is not None:
            sampling["prompt_logprobs"] = self.prompt_logprobs
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            messages=plain_messages(self.messages),
            tool_use=use,
            template_options=self.template_options(),
            sampling=sampling,
            max_tokens=self._limit(),
            stops=list(self.stop or self.stops_by_default),
            guidance=guidance_of(self, shape, "response_format", use),
            continue_final=self.continues,
            add_generation_prompt=self.add_generation_prompt is not False,
            progress=bool(self.return_progress and self.stream),
            prediction=self.prediction.text[:PREDICTION_CHARACTERS_MAX] if self.prediction else "",
            streamed=bool(self.stream),
            **self.common(stream_id, caller),
        )

    def _tool_use(self) -> ToolUse | None:
        tools = [tool.plain() for tool in self.tools or ()]
        choice = self.tool_choice
        chosen: str | dict[str, Any] | None
        if isinstance(choice, ChatAllowedChoice):
            tools, chosen = allowed_only(tools, choice.names), choice.allowed_tools.mode
        else:
            chosen = choice.model_dump() if isinstance(choice, ChatNamedChoice) else choice
        return tool_use(tools, chosen, parallel=self.parallel_tool_calls is not False)

    def _limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens or self.n_predict or self.limit_by_default

    @property
    def continues(self) -> bool:
        """Whether the last message is the start of the answer."""
        last = self.messages[-1]
        begun = last.role == "assistant" and not last.tool_calls
        if self.continue_final_message is None:
            return begun and self.add_generation_prompt is not True
        if self.continue_final_message and not begun:
            raise InvalidFieldError("requires a text of the assistant as the last message", param=_CONTINUE)
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidFieldError("conflicts with add_generation_prompt", param=_CONTINUE)
        return self.continue_final_message

    def _check(self) -> None:
        self.check_stream_options()
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidFieldError("is not available in streams", param="prompt_logprobs")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidFieldError("requires logprobs: true", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise InvalidFieldError("conflicts with max_completion_tokens", param="max_tokens")
        if self.parallel_tool_calls is not None and self.tools is None:
            raise InvalidFieldError("requires tools", param="parallel_tool_calls")

    def template_options(self) -> dict[str, Any]:
        found = self.thinking_options()
        if self.chat_template_kwargs is not None:
            found |= self.chat_template_kwargs.model_dump(exclude_none=True)
        return found
