"""The body of /v1/responses, converted to chat messages and generation parameters.

Nothing is stored: a response cannot be continued by its id, so those fields are rejected by name.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationInfo

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import GenerateParams, Guidance
from stretto.server.http.caller import Caller
from stretto.server.http.fields import (
    TOP_LOGPROBS_MAX,
    Body,
    Ignored,
    MaxTokensOrAll,
    ModelName,
    not_honoured,
    only,
)
from stretto.server.http.ignored import IgnoredFields
from stretto.server.openai.compat import Effort, Generating, thinking_options
from stretto.server.openai.response_items import Items, append_item
from stretto.server.openai.response_tools import Choice, Tools, ToolTable
from stretto.server.openai.tools import (
    JsonObject,
    JsonObjectFormat,
    TextFormat,
    ToolName,
    guidance_of,
    schema_guidance,
)

LOGPROBS = "message.output_text.logprobs"
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
INCLUDABLE = get_args(Includable)


class SchemaFormat(Body):
    where: ClassVar[str] = "text.format"
    type: Literal["json_schema"]
    name: ToolName
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    where: ClassVar[str] = "text"
    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: not_honoured("text") = None  # type: ignore[valid-type]


class ReasoningOptions(Body):
    where: ClassVar[str] = "reasoning"
    effort: Effort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


def _includable(value: Any, info: ValidationInfo) -> Any:
    """Output of hosted tools, which do not exist here: ignored and named."""
    if not isinstance(value, list) or not isinstance(info.context, IgnoredFields):
        return value
    foreign = [one for one in value if isinstance(one, str) and one not in INCLUDABLE]
    info.context.add("include", foreign, len(foreign))
    return [one for one in value if one not in foreign]


class ResponseRequest(Generating):
    input: Annotated[str, Field(min_length=1)] | Items
    model: ModelName | None = None
    """Default: the server's default model."""
    instructions: str | None = None
    """Inserted first, as a system message."""
    max_output_tokens: MaxTokensOrAll = None
    stream: bool | None = None
    stream_options: Ignored = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    include: Annotated[list[Includable], BeforeValidator(_includable)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    max_tool_calls: Ignored = None
    context_management: not_honoured() = None  # type: ignore[valid-type]
    truncation: Literal["auto", "disabled"] | None = None
    """auto: drop the oldest messages if the conversation is too long."""
    background: only(False) = None  # type: ignore[valid-type]
    previous_response_id: None = None
    """Responses are not stored: send the whole conversation as input."""
    conversation: None = None
    """Conversations are not stored: send the whole conversation as input."""
    prompt: None = None
    """Prompts are not stored: send instructions and input."""

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or LOGPROBS in (self.include or ())

    @property
    def choice(self) -> str | dict[str, Any]:
        """As sent by the client; default `auto`."""
        chosen = self.tool_choice
        return chosen or "auto" if chosen is None or isinstance(chosen, str) else _dumped(chosen)

    @cached_property
    def table(self) -> ToolTable:
        return ToolTable(self.tools or ())

    def params(self, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        use = self.table.use(self.tool_choice, parallel=self.parallel_tool_calls is not False)
        sampling = self.sampling()
        if self.wants_logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        effort = self.reasoning.effort if self.reasoning is not None else None
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            messages=self._messages(),
            tool_use=use,
            template_options={} if effort is None else thinking_options(effort),
            sampling=sampling,
            max_tokens=self.max_output_tokens,
            stops=self.stops_by_default,
            guidance=guidance_of(self, self._shape(), "text.format", use),
            truncate_messages=self.truncation == "auto",
            streamed=bool(self.stream),
            **self.common(stream_id, caller),
        )

    def _shape(self) -> Guidance | None:
        asked = self.text.format if self.text is not None else None
        if isinstance(asked, JsonObjectFormat):
            if asked.schema_:
                return schema_guidance(asked.schema_, "text.format.schema")
            return Guidance(mode="json_object")
        if isinstance(asked, SchemaFormat):
            return schema_guidance(asked.schema_, "text.format.schema")
        return None

    def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self.instructions:
            found.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*found, {"role": "user", "content": self.input}]
        for item in self.input:
            append_item(found, item)
        if not found:
            raise InvalidFieldError("contains no message", param="input")
        return found


def _dumped(value: Body) -> dict[str, Any]:
    return value.model_dump(exclude_none=True)
