"""Reads the server-sent events of an OpenAI stream without decoding most of them.

Text events are recognised by their bytes; only the few events with an end, usage or an error are decoded as
JSON, or all of them if the text itself is needed. Quotes inside text are escaped, so text cannot be mistaken
for a field.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|text)": ?"[^"]')
_FACTS = re.compile(rb'"(?:usage|error|timings)": ?[{"]|"finish_reason": ?"')
_EVENT_BYTES_MAX = 1 << 22


class SseReader:
    """Feed it body bytes; it fills `chunks_s` and keeps the facts of the last events."""

    __slots__ = (
        "_keeps_text",
        "_tail",
        "chunks_s",
        "done",
        "error",
        "finish_reason",
        "seen",
        "text",
        "timings",
        "usage",
    )

    def __init__(self, *, keeps_text: bool = False) -> None:
        self._keeps_text = keeps_text
        self._tail = b""
        self.chunks_s: list[float] = []
        self.text: list[str] = []
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self.finish_reason = ""
        self.done = False
        self.seen = False

    def feed(self, data: bytes, now_s: float) -> None:
        if self._tail:
            data = self._tail + data
        lines = data.split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > _EVENT_BYTES_MAX:
            raise ValueError("an event without end")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def _event(self, data: bytes, now_s: float) -> None:
        self.seen = True
        if _TEXT.search(data):
            self.chunks_s.append(now_s)
            if self._keeps_text:
                self.text.append(_text_of(msgspec.json.decode(data)))
        if data == b"[DONE]":
            self.done = True
        elif _FACTS.search(data):
            self._facts(msgspec.json.decode(data))

    def _facts(self, event: Any) -> None:
        if not isinstance(event, dict):
            return
        self.usage = _dict(event.get("usage")) or self.usage
        self.timings = _dict(event.get("timings")) or self.timings
        if event.get("error"):
            self.error = _dict(event["error"]) or {"message": str(event["error"])}
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_of(event: Any) -> str:
    """The answer's text, without reasoning."""
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return delta.get("content") or choice.get("text") or ""
