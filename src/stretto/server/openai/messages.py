"""OpenAI's chat messages, validated and converted to plain values for chat templates."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from stretto.server.http.fields import Body, Ignored, unsupported
from stretto.server.media.parts import file_part, picture_at

MESSAGES_MAX = 4096
PARTS_MAX = 1024
Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Body):
    where: ClassVar[str] = "messages.content"
    type: Literal["text"]
    text: str
    cache_control: Ignored = None


class ImageAddress(Body):
    where: ClassVar[str] = "messages.content.image_url"
    url: str
    """A data URL with base64; or an http(s) URL, where the operator allows its host."""
    detail: Ignored = None


class ImagePart(Body):
    where: ClassVar[str] = "messages.content"
    type: Literal["image_url"]
    image_url: ImageAddress
    cache_control: Ignored = None


class AudioData(Body):
    where: ClassVar[str] = "messages.content.input_audio"
    data: str
    """The file in base64."""
    format: Literal["wav", "mp3"]


class AudioPart(Body):
    where: ClassVar[str] = "messages.content"
    type: Literal["input_audio"]
    input_audio: AudioData
    cache_control: Ignored = None


def _text_only(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in ("image_url", "input_audio", "file", "video_url"):
        raise unsupported(f"parts of type {kind} are not supported here")
    return part


def _known_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in ("file", "video_url"):
        raise unsupported(f"parts of type {kind} are not supported")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}  # the assistant's refusal replaces the content
    if kind == "image_url" and isinstance(part.get("image_url"), str):
        return {**part, "image_url": {"url": part["image_url"]}}  # as some clients send it
    return part


TextPartOnly = Annotated[TextPart, BeforeValidator(_text_only)]
AnyPart = TextPart | ImagePart | AudioPart
Part = Annotated[
    Annotated[AnyPart, Field(discriminator="type")],
    BeforeValidator(_known_part, json_schema_input_type=AnyPart),
]
Content = Annotated[str, Field()] | Annotated[list[Part], Field(min_length=1, max_length=PARTS_MAX)]


def plain_part(part: AnyPart, param: str) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return picture_at(part.image_url.url, f"{param}.image_url.url")
    if isinstance(part, AudioPart):
        return file_part("audio", part.input_audio.data)
    return {"type": "text", "text": part.text}


class FunctionCall(Body):
    where: ClassVar[str] = "messages.tool_calls.function"
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str


class ChatToolCall(Body):
    where: ClassVar[str] = "messages.tool_calls"
    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Ignored = None


def template_role(role: str) -> str:
    """Chat templates know `system`; most ignore or reject `developer`."""
    return "system" if role == "developer" else role


class ChatMessage(Body):
    """One message. Which fields are valid for which role is checked below."""

    where: ClassVar[str] = "messages"

    role: Role
    content: Content | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[ChatToolCall], Field(max_length=128)] | None = None
    """Tool calls of the assistant."""
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    """The id of the call that a tool message answers."""
    reasoning_content: str | None = None
    """The assistant's reasoning, for templates that include it."""
    refusal: str | None = None
    """The assistant's refusal, instead of content."""
    annotations: Ignored = None
    cache_control: Ignored = None
    audio: None = None
    """Audio is not supported."""
    function_call: None = None
    """Use tool_calls."""

    def plain(self, index: int = 0) -> dict[str, Any]:
        return {"role": template_role(self.role), "content": self.content_plain(index), **self._extras()}

    def content_plain(self, index: int = 0) -> Any:
        if self.content is None:
            return self.refusal if self.role == "assistant" else None
        if isinstance(self.content, str):
            return self.content
        where = f"messages.{index}.content"
        return [plain_part(part, f"{where}.{at}") for at, part in enumerate(self.content)]

    @property
    def has_media(self) -> bool:
        return isinstance(self.content, list) and any(part.type != "text" for part in self.content)

    def _extras(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.tool_calls:
            found["tool_calls"] = [
                call.model_dump(include={"id", "type", "function"}) for call in self.tool_calls
            ]
        return found


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES_MAX)]


def plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    from stretto.errors import InvalidFieldError, MissingFieldError

    for index, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id is None:
            raise MissingFieldError("is required for role tool", param=f"messages.{index}.tool_call_id")
        if message.content is None and not (
            message.role == "assistant" and (message.tool_calls or message.refusal is not None)
        ):
            raise MissingFieldError("is required", param=f"messages.{index}.content")
        if message.tool_calls and message.role != "assistant":
            raise InvalidFieldError(
                "is only valid for the role assistant", param=f"messages.{index}.tool_calls"
            )
        if message.has_media and message.role not in ("user", "tool"):
            raise InvalidFieldError(
                f"has pictures or sounds, which the role {message.role} cannot send",
                param=f"messages.{index}.content",
            )
    return [message.plain(index) for index, message in enumerate(messages)]
