"""Parts of OpenAI's replies shared by several routes, as plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from stretto import __version__
from stretto.rpc.messages import ToolCallDelta, UsageMessage
from stretto.server.http.error_boundary import new_id


@cache
def fingerprint(model: str) -> str:
    """OpenAI's `system_fingerprint`: identifies what may change an answer besides the request."""
    return "fp_" + hashlib.sha256(f"{__version__}\n{model}".encode()).hexdigest()[:12]


def usage_of(usage: UsageMessage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "image_tokens": usage.image_tokens,
            "audio_tokens": usage.audio_tokens,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_drafts,
            "rejected_prediction_tokens": usage.proposed_drafts - usage.accepted_drafts,
        },
    }


def tool_call_of(call: ToolCallDelta) -> dict[str, Any]:
    return {
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def tool_calls_of(calls: Sequence[ToolCallDelta]) -> list[dict[str, Any]]:
    return [tool_call_of(call) for call in calls]
