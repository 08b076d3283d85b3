"""Content blocks of Anthropic's messages, validated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from stretto.server.http.fields import Body, Ignored, unsupported
from stretto.server.media.parts import file_part, picture_at
from stretto.server.openai.messages import PARTS_MAX
from stretto.server.openai.tools import JsonObject

_KNOWN = ("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result")


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


class Base64Source(Body):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(Body):
    """Where the operator allows its host."""

    type: Literal["url"]
    url: str


class ImageBlock(Body):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]
    cache_control: Ignored = None

    def plain(self) -> dict[str, Any]:
        if isinstance(self.source, UrlSource):
            return picture_at(self.source.url, "source.url")
        return file_part("image", self.source.data)


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
    content: str | Annotated[list[ResultBlock], Field(max_length=PARTS_MAX)] | None = None
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


def _result_block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(kind, str) and kind not in ("text", "image"):
        raise unsupported(f"blocks of type {kind[:40]} are not supported here")
    return block


TextBlockOnly = Annotated[TextBlock, BeforeValidator(_text_block)]
AnyResultBlock = TextBlock | ImageBlock
ResultBlock = Annotated[
    Annotated[AnyResultBlock, Field(discriminator="type")],
    BeforeValidator(_result_block, json_schema_input_type=AnyResultBlock),
]
AnyBlock = TextBlock | ImageBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
Block = Annotated[
    Annotated[AnyBlock, Field(discriminator="type")],
    BeforeValidator(_known_block, json_schema_input_type=AnyBlock),
]
TextBlocks = Annotated[list[TextBlockOnly], Field(max_length=PARTS_MAX)]


ToolResultBlock.model_rebuild()
