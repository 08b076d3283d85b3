"""Events of a streamed message: content blocks are opened, extended and closed one at a time."""

from __future__ import annotations

from typing import Any

import msgspec

from stretto.client.api import Delta
from stretto.rpc.messages import StreamEnd, ToolCallDelta, UsageMessage
from stretto.server.anthropic.shapes import message_of, stop_of, usage_of
from stretto.server.generation import parts_of
from stretto.server.http.error_boundary import new_id

_encode = msgspec.json.encode
_BLANKS = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageEvents:
    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._begun = False
        self._index = 0
        self._open = ""  # the kind of the open block
        self._calls = False
        self._cached = 0
        self._head = b""
        self._events: list[bytes] = []

    def render(self, delta: Delta, prompt_tokens: int) -> bytes:
        """All events of one delta."""
        self._events = []
        if not self._begun:
            self._begin_message(delta, prompt_tokens)
        grown, begun = parts_of(delta.tool_calls)
        for call in grown:
            self._call(call)
        if delta.reasoning:
            self._grow("thinking", delta.reasoning)
        if delta.text:
            self._grow("text", delta.text)
        for call in begun:
            self._call(call)
        if delta.end is not None:
            self._end(delta.end)
        return b"".join(self._events)

    def _begin_message(self, delta: Delta, prompt_tokens: int) -> None:
        """Includes the prompt's usage, known once the stream has its slot. The last event repeats it."""
        self._begun = True
        if delta.start is not None:
            self._cached = delta.start.cached_tokens
        elif delta.end is not None:
            self._cached = delta.end.usage.cached_tokens
        usage = UsageMessage(prompt_tokens=prompt_tokens, cached_tokens=self._cached)
        message = message_of(self._id, self._model, [], None, usage)
        self._event("message_start", {"message": message})

    def _grow(self, kind: str, text: str) -> None:
        if self._open != kind:
            self._close()
            self._begin(kind, _BLANKS[kind])
            name, field = _DELTAS[kind]
            event = {"type": "content_block_delta", "index": self._index}
            head = _encode(event)[:-1] + b',"delta":{"type":"%b","%b":' % (name.encode(), field.encode())
            self._head = b"event: content_block_delta\ndata: " + head
        self._events.append(self._head + _encode(text) + b"}}\n\n")

    def _begin(self, kind: str, block: dict[str, Any]) -> None:
        self._open = kind
        self._event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> None:
        if not self._open:
            return
        self._event("content_block_stop", {"index": self._index})
        self._open = ""
        self._index += 1

    def _call(self, call: ToolCallDelta) -> None:
        """A tool call, or the next piece of the open one."""
        if call.name:
            self._close()
            self._calls = True
            block = {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}}
            self._begin("tool_use", block)
        if call.arguments:
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            self._event("content_block_delta", {"index": self._index, "delta": delta})
        if call.done:
            self._close()

    def _end(self, end: StreamEnd) -> None:
        if self._index == 0 and not self._open:
            self._begin("text", _BLANKS["text"])  # an empty message still has one block
        self._close()
        reason, sequence = stop_of(end, calls=self._calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = msgspec.structs.replace(end.usage, cached_tokens=self._cached)
        self._event("message_delta", {"delta": delta, "usage": usage_of(usage)})
        self._event("message_stop", {})

    def _event(self, name: str, fields: dict[str, Any]) -> None:
        body = _encode({"type": name, **fields})
        self._events.append(b"event: " + name.encode() + b"\ndata: " + body + b"\n\n")
