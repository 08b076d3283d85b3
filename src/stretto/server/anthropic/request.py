"""Bodies of /v1/messages and its token count, converted to chat messages and generation parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from stretto.errors import InvalidFieldError, ThreadUnsupportedError
from stretto.rpc.messages import GenerateParams, Guidance, TokenizeParams
from stretto.server.anthropic.blocks import (
    Block,
    ImageBlock,
    TextBlock,
    TextBlocks,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from stretto.server.http.caller import Caller
from stretto.server.http.fields import (
    STOPS_MAX,
    TOOLS_MAX,
    Body,
    Extensions,
    Ignored,
    MaxTokens,
    ModelName,
    SamplingFields,
    StopString,
    only,
    unsupported,
)
from stretto.server.http.ignored import IgnoredFields
from stretto.server.media.parts import text_only
from stretto.server.openai.messages import MESSAGES_MAX, PARTS_MAX
from stretto.server.openai.tools import (
    Guided,
    JsonObject,
    check_size,
    guidance_of,
    plain_tool,
    schema_guidance,
    tool_use,
)

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
_SERVER_TOOLS = (
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "advisor_",
    "mcp_toolset",
)
"""Tools hosted by Anthropic: not offered to the model here."""
_BILLING = "x-anthropic-billing-header:"
"""Prefix of Claude Code's first system block, which differs in every request."""


class InputMessage(Body):
    """A system message applies from its position on; `clear_at` may end it at the user's next message."""

    where = "messages"

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=PARTS_MAX)]
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: Ignored = None

    @model_validator(mode="before")
    @classmethod
    def _settings_only(cls, value: Any) -> Any:
        """A system message may contain settings without text."""
        if isinstance(value, dict) and value.get("role") == "system" and value.get("output_config"):
            return {"content": "", **value}
        return value


class AnthropicTool(Body):
    name: ToolName
    input_schema: JsonObject
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    type: Literal["custom"] | None = None
    cache_control: Ignored = None
    strict: bool | None = None
    eager_input_streaming: Ignored = None
    input_examples: Ignored = None
    defer_loading: Ignored = None
    allowed_callers: Ignored = None

    where = "tools"

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


class AnthropicThinking(Body):
    """Whether the model may reason. How long depends on the model and max_tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    display: Ignored = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Body):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class AnthropicConversation(Body):
    """The part of a request that forms the prompt."""

    @model_validator(mode="before")
    @classmethod
    def _without_server_tools(cls, value: Any, info: ValidationInfo) -> Any:
        """If unknown fields are ignored, hosted tools are ignored as well, and named."""
        tools = value.get("tools") if isinstance(value, dict) else None
        if not isinstance(info.context, IgnoredFields) or not isinstance(tools, list):
            return value
        kinds = [str(tool.get("type") or "") if isinstance(tool, dict) else "" for tool in tools]
        ignored = [kind for kind in kinds if kind.startswith(_SERVER_TOOLS)]
        if not ignored:
            return value
        info.context.add("tools", ignored, len(ignored))
        own = [tool for tool, kind in zip(tools, kinds, strict=True) if kind not in ignored]
        return {**value, "tools": own}

    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MESSAGES_MAX)]
    model: ModelName | None = None
    """Default: the server's default model."""
    system: str | TextBlocks | None = None
    tools: (
        Annotated[list[Annotated[AnthropicTool, BeforeValidator(_own_tool)]], Field(max_length=TOOLS_MAX)]
        | None
    ) = None
    tool_choice: Choice | None = None
    thinking: AnthropicThinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Ignored = None
    context_management: Ignored = None
    mcp_servers: only([]) = None  # type: ignore[valid-type]
    """The server makes no outgoing calls."""
    container: None = None
    """The server runs no code."""
    compaction: None = None
    """The server does not shorten conversations."""
    thread: Ignored = None
    """Conversations are not stored: rejected with an error after which clients send them whole."""
    speed: Ignored = None
    diagnostics: Ignored = None
    user_profile_id: Ignored = None
    betas: Ignored = None

    def plain_messages(self) -> list[dict[str, Any]]:
        if self.thread is not None:
            raise ThreadUnsupportedError("conversations are not stored", param="thread")
        found = _system(self.system)
        users = [index for index, message in enumerate(self.messages) if message.role == "user"]
        for index, message in enumerate(self.messages):
            cleared = message.clear_at == "next_user_message" and users and users[-1] > index
            if not cleared:
                found.extend(_plain(message, index))
        if len(found) > 1 and found[-1] == {"role": "assistant", "content": ""}:
            found.pop()  # an empty assistant message
        return found

    def plain_tools(self) -> list[dict[str, Any]]:
        return [tool.plain() for tool in self.tools or ()]

    def template_options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.thinking is not None:
            found["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            found["reasoning_effort"] = self.output_config.effort
        return found

    def tokenize_params(self, model_id: str, tenant: str) -> TokenizeParams:
        """The prompt that `/v1/messages` would use."""
        tools = self.plain_tools()
        check_size(tools, "tools")
        offered = tools and (self.tool_choice is None or self.tool_choice.type != "none")
        messages = text_only(self.plain_messages())
        return TokenizeParams(
            model_id=model_id,
            messages=messages,
            tools=tools if offered else None,
            template_options=self.template_options(),
            continue_final=is_begun(messages),
            tenant=tenant,
        )


class MessagesRequest(AnthropicConversation, Guided, SamplingFields, Extensions):
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
        messages = self.plain_messages()
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            messages=messages,
            continue_final=is_begun(messages),
            tool_use=use,
            template_options=self.template_options(),
            sampling=self.sampling(),
            bias_texts=self.bias_texts,
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


def _choice(choice: Choice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidFieldError("is only valid with type tool", param="tool_choice.name")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]


def is_begun(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message is the start of the answer."""
    last = messages[-1]
    return bool(last["role"] == "assistant" and last["content"] and not last.get("tool_calls"))


def _system(system: str | list[TextBlock] | None) -> list[dict[str, Any]]:
    if isinstance(system, list):
        system = [block for block in system if not block.text.startswith(_BILLING)]
    return [{"role": "system", "content": _plain_text(system)}] if system else []


def _plain_text(content: str | Sequence[TextBlock | ImageBlock]) -> Any:
    if isinstance(content, str):
        return content
    return [_plain_block(block) for block in content]


def _plain_block(block: TextBlock | ImageBlock) -> dict[str, Any]:
    return block.plain() if isinstance(block, ImageBlock) else {"type": "text", "text": block.text}


def _plain(message: InputMessage, index: int) -> list[dict[str, Any]]:
    """Tool results in a message become separate messages, before the rest of it."""
    if message.role == "system" and not message.content:
        return []
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "user" and not message.content:
        raise InvalidFieldError("must not be empty", param=f"messages.{index}.content")
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for at, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(_plain_block(block))
        elif isinstance(block, ImageBlock):
            _belongs(message, "user", f"messages.{index}.content.{at}")
            texts.append(_plain_block(block))
        elif isinstance(block, ToolResultBlock):
            _belongs(message, "user", f"messages.{index}.content.{at}")
            results.append(_result(block))
        elif isinstance(block, ToolUseBlock):
            _belongs(message, "assistant", f"messages.{index}.content.{at}")
            calls.append(_call(block))
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
    if not (texts or calls or thoughts):
        return results or [{"role": message.role, "content": ""}]
    own: dict[str, Any] = {"role": message.role, "content": texts or None}
    if calls:
        own["tool_calls"] = calls
    if thoughts:
        own["reasoning_content"] = "".join(thoughts)
    return [*results, own]


def _belongs(message: InputMessage, role: str, param: str) -> None:
    if message.role != role:
        raise InvalidFieldError(f"is only valid for the role {role}", param=param)


def _result(block: ToolResultBlock) -> dict[str, Any]:
    content = "" if block.content is None else _plain_text(block.content)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content or ""}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}
