"""Events of a streamed response: items are opened, extended and closed one at a time, in order."""

from __future__ import annotations

from typing import Any

import msgspec

from stretto.client.api import Delta
from stretto.errors import StrettoError
from stretto.rpc.messages import ToolCallDelta
from stretto.server.generation import parts_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.errors import openai_words
from stretto.server.openai.logprobs import chat_logprobs
from stretto.server.openai.response_shapes import (
    Envelope,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)
from stretto.server.openai.response_tools import Origin

_encode = msgspec.json.encode
_ANSWERS = ("message", "function_call", "custom_tool_call")


class ResponseEvents:
    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._number = 0
        self._begun = False
        self._output: list[dict[str, Any]] = []
        self._open = ""  # the kind of the open item: reasoning, text, call or none
        self._item_id = ""
        self._origin, self._call_id = Origin(""), ""  # of the open call
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._events: list[bytes] = []
        self._text_head = b""

    def render(self, delta: Delta) -> bytes:
        """All events of one delta."""
        self._events = []
        if not self._begun:
            self._begun = True
            for name in ("created", "in_progress"):
                self._event(f"response.{name}", {"response": self._envelope.begun()})
        grown, begun = parts_of(delta.tool_calls)
        for call in grown:
            self._call(call)
        if delta.reasoning:
            self._grow_reasoning(delta.reasoning)
        if delta.text or (delta.logprobs and self._envelope.logprobs):
            self._grow_text(delta)
        for call in begun:
            self._call(call)
        if delta.end is not None:
            self._end(delta)
        return b"".join(self._events)

    def failed(self, error: StrettoError) -> bytes:
        """The last event of a response that failed after its start."""
        self._events = []
        self._event("response.failed", {"response": self._envelope.failed(*openai_words(error))})
        return b"".join(self._events)

    # --- items ------------------------------------------------------------------------------------

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": len(self._output)}

    def _grow_reasoning(self, text: str) -> None:
        if self._open != "reasoning":
            self._close()
            self._begin("reasoning", "rs_", reasoning_item)
        self._texts.append(text)
        self._event("response.reasoning_text.delta", {**self._place, "content_index": 0, "delta": text})

    def _grow_text(self, delta: Delta) -> None:
        if self._open != "text":
            self._close()
            self._begin("text", "msg_", lambda item_id, status, _: message_item(item_id, status, []))
            part = {**self._place, "content_index": 0, "part": text_part("", [])}
            self._event("response.content_part.added", part)
            self._text_head = _encode({**self._place, "content_index": 0})[1:-1]
        entries = chat_logprobs(delta.logprobs)["content"] if self._envelope.logprobs else []
        self._texts.append(delta.text)
        self._logprobs.extend(entries)
        rest = _encode({"delta": delta.text, "logprobs": entries})[1:]
        name = b"response.output_text.delta"
        self._events.append(
            b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b,%b\n\n'
            % (name, name, self._number, self._text_head, rest)
        )
        self._number += 1

    def _begin(self, kind: str, prefix: str, make: Any) -> None:
        self._open, self._item_id = kind, new_id(prefix)
        item = make(self._item_id, "in_progress", None)
        self._event("response.output_item.added", {"output_index": len(self._output), "item": item})

    def _close(self, status: str = "completed") -> None:
        """Close the open item."""
        if not self._open:
            return
        text, place = "".join(self._texts), {**self._place, "content_index": 0}
        if self._open == "call":
            item = self._called(text, status)
        elif self._open == "reasoning":
            self._event("response.reasoning_text.done", {**place, "text": text})
            item = reasoning_item(self._item_id, status, text)
        else:
            part = text_part(text, self._logprobs)
            self._event("response.output_text.done", {**place, "text": text, "logprobs": self._logprobs})
            self._event("response.content_part.done", {**place, "part": part})
            item = message_item(self._item_id, status, [part])
        self._done(item)
        self._open, self._texts, self._logprobs = "", [], []

    def _call(self, call: ToolCallDelta) -> None:
        """A tool call, or the next piece of the open one."""
        if call.name:
            self._close()
            self._origin, self._call_id = self._envelope.origin(call.name), new_id("call_")
            self._open, self._item_id = "call", new_id("ctc_" if self._origin.custom else "fc_")
            item = self._call_item("", "in_progress")
            self._event("response.output_item.added", {"output_index": len(self._output), "item": item})
        if call.arguments:
            self._texts.append(call.arguments)
            if not self._origin.custom:  # its free text is known once its JSON is complete
                piece = {**self._place, "delta": call.arguments}
                self._event("response.function_call_arguments.delta", piece)
        if call.done:
            self._close()

    def _call_item(self, arguments: str, status: str) -> dict[str, Any]:
        return call_item(self._item_id, self._call_id, arguments, status, origin=self._origin)

    def _called(self, arguments: str, status: str) -> dict[str, Any]:
        """Close the open call: its last events, and its item."""
        item = self._call_item(arguments, status)
        if self._origin.custom:
            self._event("response.custom_tool_call_input.delta", {**self._place, "delta": item["input"]})
            self._event("response.custom_tool_call_input.done", {**self._place, "input": item["input"]})
        else:
            done = {**self._place, "name": self._origin.name, "arguments": arguments}
            self._event("response.function_call_arguments.done", done)
        return item

    def _done(self, item: dict[str, Any]) -> None:
        self._event("response.output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)

    def _end(self, delta: Delta) -> None:
        assert delta.end is not None
        if not self._open and not any(item["type"] in _ANSWERS for item in self._output):
            self._grow_text(Delta())  # an empty response still has one message
        self._close("incomplete" if delta.end.finish_reason == "length" else "completed")
        response = self._envelope.ended(self._output, delta.end)
        self._event(f"response.{response['status']}", {"response": response})

    def _event(self, name: str, fields: dict[str, Any]) -> None:
        body = _encode({"type": name, "sequence_number": self._number, **fields})
        self._events.append(b"event: " + name.encode() + b"\ndata: " + body + b"\n\n")
        self._number += 1
