"""Pictures and sounds that go with a message of `run` and `chat`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stretto.cli.failures import UsageError

Attachments = Sequence[tuple[str, Path]]  # the kind of each, image or audio, and its file


def attachments(
    images: Sequence[Path] | None, sounds: Sequence[Path] | None, *, text: str | None, raw: bool
) -> Attachments:
    """What `run` was given. They need a question and a chat template."""
    found = [*(("image", path) for path in images or ()), *(("audio", path) for path in sounds or ())]
    if found and text is None:
        raise UsageError("a question is missing", hint='stretto run --image cat.png "What is this?"')
    if found and raw:
        raise UsageError("--raw has no place for pictures and sounds", hint="omit --raw")
    return found


def with_parts(text: str, media: Attachments) -> str | list[dict[str, Any]]:
    """The content of a message: media before the text."""
    if not media:
        return text
    return [*({"type": kind, kind: path} for kind, path in media), {"type": "text", "text": text}]
