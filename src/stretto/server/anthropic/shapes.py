"""Anthropic's replies, as plain values and as models for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stretto.rpc.messages import StreamEnd, ToolCallDelta, UsageMessage
from stretto.server.generation import Answer, finish_reason
from stretto.server.http.error_boundary import new_id
from stretto.server.openapi import ReplyModel

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_REASONS: dict[str, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageUsage(ReplyModel):
    input_tokens: int
    """Prompt tokens computed for this request."""
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    """Prompt tokens taken from the prefix cache."""
    output_tokens: int


class MessageReply(ReplyModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(ReplyModel):
    input_tokens: int


def usage_of(usage: UsageMessage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def stop_of(end: StreamEnd, *, calls: bool) -> tuple[StopReason, str | None]:
    if end.stop is not None and end.finish_reason == "stop" and not calls:
        return "stop_sequence", end.stop
    return _REASONS[finish_reason(end, calls=calls)], None


def message_of(
    message_id: str, model: str, content: list[dict[str, Any]], end: Answer | None, usage: UsageMessage
) -> dict[str, Any]:
    reason, sequence = (None, None) if end is None else stop_of(end.end, calls=bool(_complete(end)))
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage_of(usage),
    }


def blocks_of(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if answer.reasoning:
        found.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    calls = _complete(answer)
    if answer.text or not calls:
        found.append({"type": "text", "text": answer.text})
    for call in calls:
        block = {"type": "tool_use", "id": new_id("toolu_"), "name": call.name}
        found.append({**block, "input": _object(call.arguments)})
    return found


def _complete(answer: Answer) -> list[ToolCallDelta]:
    """A block's input must be an object, so a truncated call cannot be shown."""
    return [call for call in answer.tool_calls if call.done]


def _object(arguments: str) -> dict[str, Any]:
    """Arguments that are not a JSON object are shown as text rather than dropped."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}
