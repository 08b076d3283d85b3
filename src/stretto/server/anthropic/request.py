"""The bodies of /v1/messages and its token count: blocks become chat messages, the rest a generation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import GenerateParams, Guidance, TokenizeParams
from stretto.server.caller import Caller
from stretto.server.fields import (
    STOPS_MAX,
    TOOLS_MAX,
    Body,
    Extensions,
    Ignored,
    MaxTokens,
    ModelName,
    Sampling,
    StopString,
    unsupported,
)
from stretto.server.openai.messages import MESSAGES_MAX, PARTS_MAX
from stretto.server.openai.tools import (
    Guided,
    JsonObject,
    ToolName,
    check_size,
    guidance_of,
    plain_tool,
    schema_guidance,
    tool_use,
)

_KNOWN = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


class TextBlock(Body):
    type: Literal["text"]
    text: str
    cache_control: Ignored = None
    citations: Ignored = None


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str
    signature: Ignored = None


class RedactedBlock(Body):
    type: Literal["redacted_thinking"]
    data: Ignored = None


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: JsonObject
    cache_control: Ignored = None
    caller: Ignored = None


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: str | Annotated[list[TextBlockOnly], Field(max_length=PARTS_MAX)] | None = None
    is_error: Ignored = None
    cache_control: Ignored = None


def _known_block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(kind, str) and kind not in _KNOWN:
        raise unsupported(f"blocks of type {kind[:40]} are not supported")
    return block


def _text_block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise unsupported(f"blocks of type {kind[:40]} are not supported here")
    return block


TextBlockOnly = Annotated[TextBlock, BeforeValidator(_text_block)]
AnyBlock = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
Block = Annotated[
    Annotated[AnyBlock, Field(discriminator="type")],
    BeforeValidator(_known_block, json_schema_input_type=AnyBlock),
]
TextBlocks = Annotated[list[TextBlockOnly], Field(max_length=PARTS_MAX)]


class InputMessage(Body):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(min_length=1, max_length=PARTS_MAX)]


class AnthropicTool(Body):
    name: ToolName
    input_schema: JsonObject
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    type: Literal["custom"] | None = None
    cache_control: Ignored = None
    strict: bool | None = None
    eager_input_streaming: Ignored = None

    def plain(self) -> dict[str, Any]:
        return plain_tool(self.name, self.description, self.input_schema)


def _own_tool(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise unsupported(f"tools of type {kind[:40]} are not supported")
    return tool


class Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model may think. How long is up to the model and max_tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    display: Ignored = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Body):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Conversation(Body):
    """What counts as the prompt."""

    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MESSAGES_MAX)]
    model: ModelName | None = None
    """Left out: the model that the server serves by default."""
    system: str | TextBlocks | None = None
    tools: (
        Annotated[list[Annotated[AnthropicTool, BeforeValidator(_own_tool)]], Field(max_length=TOOLS_MAX)]
        | None
    ) = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Ignored = None
    context_management: Ignored = None
    mcp_servers: None = None
    """The server calls nobody."""
    container: None = None
    """The server runs no code."""

    def plain_messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self.system:
            found.append({"role": "system", "content": _plain_text(self.system)})
        for index, message in enumerate(self.messages):
            found.extend(_plain(message, index))
        return found

    def plain_tools(self) -> list[dict[str, Any]]:
        return [tool.plain() for tool in self.tools or ()]

    def tokenize_params(self, model_id: str) -> TokenizeParams:
        tools = self.plain_tools()
        check_size(tools, "tools")
        return TokenizeParams(model_id=model_id, messages=self.plain_messages(), tools=tools or None)


class MessagesRequest(Conversation, Guided, Sampling, Extensions):
    max_tokens: MaxTokens
    stop_sequences: Annotated[list[StopString], Field(max_length=STOPS_MAX)] | None = None
    stream: bool | None = None
    metadata: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    draft_model: None = None
    """A second model cannot be chosen by a request."""

    def params(self, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        wanted = self.tool_choice
        parallel = wanted is None or not wanted.disable_parallel_tool_use
        use = tool_use(self.plain_tools(), _choice(wanted), parallel=parallel)
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            messages=self.plain_messages(),
            tool_use=use,
            template_options=self._template_options(),
            sampling=self.sampling(),
            max_tokens=self.max_tokens,
            stops=list(self.stop_sequences or ()),
            stop_token_ids=list(self.stop_token_ids or ()),
            guidance=guidance_of(self, self._shape(), "output_config.format", use),
            priority=caller.priority(self.priority),
            tenant=caller.tenant,
            cache_salt=self.cache_salt or "",
            deadline_ms=self.deadline_ms,
            streamed=bool(self.stream),
        )

    def _shape(self) -> Guidance | None:
        asked = self.output_config.format if self.output_config is not None else None
        if asked is None:
            return None
        return schema_guidance(asked.schema_, "output_config.format.schema")

    def _template_options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.thinking is not None:
            found["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            found["reasoning_effort"] = self.output_config.effort
        return found


def _choice(choice: Choice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidFieldError("belongs to the type tool, and to no other", param="tool_choice.name")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]


def _plain_text(content: str | list[TextBlock]) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": block.text} for block in content]


def _plain(message: InputMessage, index: int) -> list[dict[str, Any]]:
    """One message becomes several where tool results stand in it: each is a message of its own, and first."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for at, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append({"type": "text", "text": block.text})
        elif isinstance(block, ToolResultBlock):
            _belongs(message, "user", f"messages.{index}.content.{at}")
            results.append(_result(block))
        elif isinstance(block, ToolUseBlock):
            _belongs(message, "assistant", f"messages.{index}.content.{at}")
            calls.append(_call(block))
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
    if not (texts or calls or thoughts):
        return results
    own: dict[str, Any] = {"role": message.role, "content": texts or None}
    if calls:
        own["tool_calls"] = calls
    if thoughts:
        own["reasoning_content"] = "".join(thoughts)
    return [*results, own]


def _belongs(message: InputMessage, role: str, param: str) -> None:
    if message.role != role:
        raise InvalidFieldError(f"belongs to the role {role}", param=param)


def _result(block: ToolResultBlock) -> dict[str, Any]:
    content = "" if block.content is None else _plain_text(block.content)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content or ""}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


ToolResultBlock.model_rebuild()
