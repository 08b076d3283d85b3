"""Input items of /v1/responses (messages, calls, outputs, reasoning), converted to chat messages.

Calls and outputs of hosted tools are ignored and named; a reference to a stored item is rejected, because
nothing is stored.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from stretto.server.http.fields import Body, Ignored, unsupported
from stretto.server.media.parts import file_part, picture_at
from stretto.server.openai.messages import MESSAGES_MAX, PARTS_MAX, AudioData, template_role
from stretto.server.openai.response_tools import flat_name, free_text_arguments
from stretto.server.openai.tools import drop_or_refuse

HOSTED = (
    frozenset(
        f"{tool}_call{end}"
        for tool in (
            "web_search",
            "file_search",
            "code_interpreter",
            "image_generation",
            "computer",
            "local_shell",
        )
        for end in ("", "_output")
    )
    | {"mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"}
    | {
        "tool_search_call",
        "tool_search_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
    }
)


def _known_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind == "input_file":
        raise unsupported(f"parts of type {kind} are not supported")
    if kind == "input_image" and isinstance(part.get("file_id"), str):
        raise unsupported("files are not stored: send image_url")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {
            "type": "output_text",
            "text": part["refusal"],
        }  # used as the content
    return part


class InputPart(Body):
    where: ClassVar[str] = "input.content"
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class InputImagePart(Body):
    where: ClassVar[str] = "input.content"
    type: Literal["input_image"]
    image_url: str
    """A data URL with base64; or an http(s) URL, where the operator allows its host."""
    detail: Ignored = None
    file_id: None = None
    """Files are not stored."""


class InputAudioPart(Body):
    where: ClassVar[str] = "input.content"
    type: Literal["input_audio"]
    input_audio: AudioData


AnyInputPart = InputPart | InputImagePart | InputAudioPart
Parts = Annotated[
    list[
        Annotated[
            Annotated[AnyInputPart, Field(discriminator="type")],
            BeforeValidator(_known_part, json_schema_input_type=AnyInputPart),
        ]
    ],
    Field(min_length=1, max_length=PARTS_MAX),
]
ShortText = Annotated[str, Field(max_length=256)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


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
    name: Name
    arguments: str
    namespace: ShortText | None = None
    id: ShortText | None = None
    status: Ignored = None


class CustomCallItem(Body):
    where: ClassVar[str] = "input"
    type: Literal["custom_tool_call"]
    call_id: ShortText
    name: Name
    input: str
    namespace: ShortText | None = None
    id: ShortText | None = None
    status: Ignored = None


class OutputItem(Body):
    where: ClassVar[str] = "input"
    type: Literal["function_call_output", "custom_tool_call_output"]
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


_TYPES = (
    "message",
    "function_call",
    "custom_tool_call",
    "function_call_output",
    "custom_tool_call_output",
    "reasoning",
)
AnyItem = MessageItem | CallItem | CustomCallItem | OutputItem | ReasoningItem


def _item(value: Any) -> Any:
    """Chooses the item class by its type, so that errors refer to that type."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type", "message")
    if isinstance(kind, str) and kind not in _TYPES:
        raise unsupported(f"items of type {kind[:40]} are not supported")
    return value if "type" in value else {"type": "message", **value}


def _without_hosted(items: Any, info: ValidationInfo) -> Any:
    if not isinstance(items, list):
        return items
    kinds = [item.get("type") if isinstance(item, dict) else None for item in items]
    hosted = [kind for kind in kinds if isinstance(kind, str) and kind in HOSTED]
    if not hosted:
        return items
    drop_or_refuse("input", hosted, info)
    return [item for item, kind in zip(items, kinds, strict=True) if kind not in HOSTED]


Item = Annotated[
    Annotated[AnyItem, Field(discriminator="type")],
    BeforeValidator(_item, json_schema_input_type=AnyItem),
]
_Items = Annotated[list[Item], Field(min_length=1, max_length=MESSAGES_MAX)]
Items = Annotated[_Items, BeforeValidator(_without_hosted, json_schema_input_type=_Items)]


def append_item(messages: list[dict[str, Any]], item: AnyItem) -> None:
    """Append one item. Reasoning and calls become parts of their assistant message."""
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
        arguments = item.arguments if isinstance(item, CallItem) else free_text_arguments(item.input)
        function = {"name": flat_name(item.name, item.namespace), "arguments": arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)


def _plain(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_plain_part(part) for part in content]


def _plain_part(part: AnyInputPart) -> dict[str, Any]:
    if isinstance(part, InputImagePart):
        return picture_at(part.image_url, "input.content.image_url")
    if isinstance(part, InputAudioPart):
        return file_part("audio", part.input_audio.data)
    return {"type": "text", "text": part.text}
