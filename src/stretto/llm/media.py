"""Pictures and sounds as callers of the SDK give them: paths, bytes, Pillow's images, or OpenAI's parts.

{"type": "image", "image": "cat.png"}                     a path, bytes, or a PIL image
{"type": "image_url", "image_url": {"url": "data:…"}}      as OpenAI has it; data URLs only
{"type": "audio", "audio": "hello.wav"}                   a path or bytes
{"type": "input_audio", "input_audio": {"data": "…"}}      base64, as OpenAI has it
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.errors import InvalidMediaError, InvalidMessageError
from stretto.llm.child import ChildModel
from stretto.llm.runtime import OpenModel
from stretto.media_files.data_urls import media_of
from stretto.rpc.media import MediaItem, MediaKind, media_part
from stretto.worker.loaded import LoadedModel
from stretto.worker.media_input import check_modalities

Media = str | Path | bytes | Any  # Any: a PIL image
FILE_BYTES_MAX = 64 << 20


def with_images(
    messages: Sequence[Mapping[str, Any]], images: Sequence[Media]
) -> tuple[list[Mapping[str, Any]], list[MediaItem]]:
    """The messages with numbers in the place of media, and the media. `images` open the last user message."""
    plain = list(messages)
    if images:
        at = max((n for n, one in enumerate(plain) if one.get("role") == "user"), default=-1)
        if at < 0:
            raise InvalidMessageError("images need a user message")
        shown = [{"type": "image", "image": image} for image in images]
        plain[at] = {**plain[at], "content": [*shown, *_as_parts(plain[at].get("content"))]}
    items: list[MediaItem] = []
    for number, message in enumerate(plain):
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            plain[number] = {**message, "content": [_moved(part, items) for part in content]}
    return plain, items


def _as_parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


def _moved(part: Any, items: list[MediaItem]) -> Any:
    found = _item(part) if isinstance(part, Mapping) else None
    if found is None:
        return part
    items.append(found)
    return media_part(len(items) - 1)


def _item(part: Mapping[str, Any]) -> MediaItem | None:
    kind = part.get("type")
    if kind in ("image", "audio"):
        media_kind: MediaKind = "image" if kind == "image" else "audio"
        return MediaItem(kind=media_kind, data=base64.b64encode(_bytes(part.get(kind))).decode())
    if kind == "image_url":
        given = part.get("image_url")
        url = given.get("url") if isinstance(given, Mapping) else given
        return MediaItem(kind="image", data=media_of(str(url))[1])
    if kind == "input_audio" and isinstance(given := part.get("input_audio"), Mapping):
        return MediaItem(kind="audio", data=str(given.get("data", "")))
    return None


def _bytes(given: Media) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str | Path):
        return _file(Path(given).expanduser())
    if hasattr(given, "save") and hasattr(given, "mode"):
        buffer = io.BytesIO()
        given.save(buffer, "PNG")
        return buffer.getvalue()
    raise InvalidMediaError(
        f"a {type(given).__name__} is not a picture", hint="give a path, bytes or a PIL image"
    )


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidMediaError(
            f"{path} cannot be read: {error.strerror}", hint="give the path of a file"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidMediaError(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB")
    return data


def check_media(model: OpenModel, media: Sequence[MediaItem]) -> None:
    """Raises where there are media that the model cannot take."""
    if isinstance(model, LoadedModel):
        check_modalities(model.description, model.runtime.modalities, media)
    elif isinstance(model, ChildModel):
        check_modalities(model.description, model.info.modalities, media)
