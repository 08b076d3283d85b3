"""Media of a generation, as they travel: the file's bytes in base64, and where it stands in the prompt."""

from __future__ import annotations

from typing import Literal

from stretto.rpc.base import Message

MediaKind = Literal["image", "audio"]
MEDIA_PART = "media"  # the type of a content part that stands for one


class MediaItem(Message):
    """A picture or a sound. In messages, a part {type: media, media: 0} stands for the first, and so on.

    `at`, in a prompt of tokens: the index of the token before which it stands.
    """

    kind: MediaKind
    data: str  # base64; decoded by the worker, on a thread
    at: int = 0


def media_part(number: int) -> dict[str, object]:
    return {"type": MEDIA_PART, "media": number}
