"""The body of /v1/responses: input items become chat messages, and the rest a generation.

Nothing is stored: a response cannot be continued by its id, so the fields for that are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import GenerateParams, Guidance
from stretto.server.caller import Caller
from stretto.server.fields import (
    TOOLS_MAX,
    TOP_LOGPROBS_MAX,
    Body,
    Extensions,
    Ignored,
    MaxTokens,
    ModelName,
    Sampling,
    only,
    unsupported,
)
from stretto.server.openai.chat_request import Effort, thinking_options
from stretto.server.openai.messages import MESSAGES_MAX, PARTS_MAX, template_role
from stretto.server.openai.tools import (
    Guided,
    JsonObject,
    JsonObjectFormat,
    TextFormat,
    ToolName,
    function_choice,
    guidance_of,
    plain_tool,
    schema_guidance,
    tool_use,
)

LOGPROBS = "message.output_text.logprobs"


def _text_only(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in ("input_image", "input_file", "input_audio", "refusal"):
        raise unsupported(f"parts of type {kind} are not supported")
    return part


class InputPart(Body):
    where: ClassVar[str] = "input.content"
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


Parts = Annotated[
    list[Annotated[InputPart, BeforeValidator(_text_only)]], Field(min_length=1, max_length=PARTS_MAX)
]
ShortText = Annotated[str, Field(max_length=256)]


class MessageItem(Body):
    where: ClassVar[str] = "input"
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: ShortText | None = None
    status: Ignored = None
    phase: Ignored = None


class CallItem(Body):
    where: ClassVar[str] = "input"
    type: Literal["function_call"]
    call_id: ShortText
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    id: ShortText | None = None
    status: Ignored = None


class OutputItem(Body):
    where: ClassVar[str] = "input"
    type: Literal["function_call_output"]
    call_id: ShortText
    output: str | Parts
    id: ShortText | None = None
    status: Ignored = None


class ReasoningPart(Body):
    where: ClassVar[str] = "input.content"
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    where: ClassVar[str] = "input"
    type: Literal["reasoning"]
    id: ShortText | None = None
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: Ignored = None
    status: Ignored = None


_ITEMS = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
    "reasoning": ReasoningItem,
}
AnyItem = MessageItem | CallItem | OutputItem | ReasoningItem


def _item(value: Any) -> Any:
    """Chooses the model by the type, so that errors are about the item that was meant."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type", "message")
    if isinstance(kind, str) and kind not in _ITEMS:
        raise unsupported(f"items of type {kind[:40]} are not supported")
    return value if "type" in value else {"type": "message", **value}


Item = Annotated[
    Annotated[AnyItem, Field(discriminator="type")],
    BeforeValidator(_item, json_schema_input_type=AnyItem),
]
Items = Annotated[list[Item], Field(min_length=1, max_length=MESSAGES_MAX)]


class FunctionTool(Body):
    where: ClassVar[str] = "tools"
    type: Literal["function"]
    name: ToolName
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def plain(self) -> dict[str, Any]:
        return plain_tool(self.name, self.description, self.parameters)


def _function_only(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise unsupported(f"tools of type {kind[:40]} are not supported")
    return tool


class FunctionChoice(Body):
    where: ClassVar[str] = "tool_choice"
    type: Literal["function"]
    name: ToolName


_AnyChoice = Literal["none", "auto", "required"] | FunctionChoice
Choice = Annotated[_AnyChoice, BeforeValidator(function_choice, json_schema_input_type=_AnyChoice)]


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
    verbosity: None = None


class ReasoningOptions(Body):
    where: ClassVar[str] = "reasoning"
    effort: Effort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


class ResponseRequest(Guided, Sampling, Extensions):
    input: Annotated[str, Field(min_length=1)] | Items
    model: ModelName | None = None
    """Left out: the model that the server serves by default."""
    instructions: str | None = None
    """Put before everything else, as a system message."""
    max_output_tokens: MaxTokens | None = None
    stream: bool | None = None
    stream_options: Ignored = None
    tools: (
        Annotated[list[Annotated[FunctionTool, BeforeValidator(_function_only)]], Field(max_length=TOOLS_MAX)]
        | None
    ) = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    truncation: only("disabled") = None  # type: ignore[valid-type]
    background: only(False) = None  # type: ignore[valid-type]
    previous_response_id: None = None
    """Responses are not stored: send the whole conversation as input."""
    conversation: None = None
    """Conversations are not stored: send the whole conversation as input."""
    prompt: None = None
    """Prompts are not stored: send instructions and input."""
    max_tool_calls: None = None
    """Only for tools that a server runs itself."""
    context_management: None = None
    """Send the conversation as short as it should be."""
    draft_model: None = None
    """A second model cannot be chosen by a request."""

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or LOGPROBS in (self.include or ())

    @property
    def choice(self) -> str | dict[str, Any]:
        """As the client sent it, `auto` where it said nothing."""
        chosen = self.tool_choice
        return chosen.model_dump() if isinstance(chosen, FunctionChoice) else chosen or "auto"

    def params(self, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        chosen = self.tool_choice
        use = tool_use(
            [tool.plain() for tool in self.tools or ()],
            {"type": "function", "function": {"name": chosen.name}}
            if isinstance(chosen, FunctionChoice)
            else chosen,
            parallel=self.parallel_tool_calls is not False,
        )
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
            stop_token_ids=list(self.stop_token_ids or ()),
            guidance=guidance_of(self, self._shape(), "text.format", use),
            priority=caller.priority(self.priority),
            tenant=caller.tenant,
            cache_salt=self.cache_salt or "",
            deadline_ms=self.deadline_ms,
            streamed=bool(self.stream),
        )

    def _shape(self) -> Guidance | None:
        asked = self.text.format if self.text is not None else None
        if isinstance(asked, JsonObjectFormat):
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
            _append(found, item)
        if not found:
            raise InvalidFieldError("holds no message", param="input")
        return found


def _append(messages: list[dict[str, Any]], item: AnyItem) -> None:
    """One item more. Reasoning and calls become parts of the assistant message that they belong to."""
    if isinstance(item, MessageItem):
        pending = messages[-1] if messages and messages[-1].get("content", "") is None else None
        if item.role == "assistant" and pending is not None and "tool_calls" not in pending:
            pending["content"] = _plain(item.content)
            return
        messages.append({"role": template_role(item.role), "content": _plain(item.content)})
    elif isinstance(item, OutputItem):
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _plain(item.output)})
    elif isinstance(item, ReasoningItem):
        text = "".join(part.text for part in item.content or item.summary or ())
        messages.append({"role": "assistant", "content": None, "reasoning_content": text})
    else:
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)


def _plain(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part.text} for part in content]
