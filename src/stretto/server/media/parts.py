"""Media parts of messages: every dialect makes them, and they leave the messages in one place.

While a body is converted, a part has its base64 or its address with it. `with_media` moves them out of the
messages into the list that travels to the worker, and fetches what is an address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from stretto.errors import InvalidFieldError, InvalidMediaError, UnsupportedFieldError
from stretto.media_files.data_urls import is_data_url, media_of
from stretto.rpc.media import MEDIA_PART, MediaItem, MediaKind, media_part
from stretto.rpc.messages import GenerateParams

Fetch = Callable[[str], Awaitable[str]]  # an address to the base64 of what is there


async def no_fetch(_url: str) -> str:
    raise InvalidMediaError("this server does not fetch pictures by their address", hint="send a data URL")


def picture_at(url: str, param: str = "") -> dict[str, Any]:
    """A picture by its URL: a data URL has it, any other names it."""
    if not is_data_url(url):
        return {"type": MEDIA_PART, "kind": "image", "url": url}
    try:
        kind, data = media_of(url)
    except InvalidMediaError as error:
        raise InvalidFieldError(error.message, param=param, hint=error.hint) from None
    if not kind.startswith("image/"):
        raise InvalidFieldError(f"is a data URL of type {kind[:40]!r}, not of a picture", param=param)
    return file_part("image", data)


def file_part(kind: MediaKind, data: str) -> dict[str, Any]:
    """A picture or a sound by its base64."""
    return {"type": MEDIA_PART, "kind": kind, "data": data}


def text_only(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a call that takes text alone: tokens of media are known once they are encoded."""
    if any(_media_parts(message) for message in messages):
        raise UnsupportedFieldError("pictures and sounds are not supported here", param="messages")
    return messages


async def with_media(params: GenerateParams, fetch: Fetch) -> GenerateParams:
    """The parameters with the media of their messages in a list of their own."""
    if not any(_media_parts(message) for message in params.messages or ()):
        return params
    items: list[MediaItem] = []
    messages: list[dict[str, Any]] = []
    for message in params.messages or ():
        if _media_parts(message):
            content = [await _moved(part, items, fetch) for part in message["content"]]
            messages.append({**message, "content": content})
        else:
            messages.append(message)
    return msgspec.structs.replace(params, messages=messages, media=items)


async def _moved(part: dict[str, Any], items: list[MediaItem], fetch: Fetch) -> dict[str, Any]:
    if part.get("type") != MEDIA_PART:
        return part
    data = part["data"] if "data" in part else await fetch(part["url"])
    items.append(MediaItem(kind=part["kind"], data=data))
    return media_part(len(items) - 1)


def _media_parts(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") == MEDIA_PART for part in content)
