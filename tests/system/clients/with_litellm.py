"""Runs in the clients' own environment: a conversation with tools and streams through litellm, both dialects.

Arguments: the server's address and the model. Prints one JSON object with the results.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
ASK = {"role": "user", "content": "What is the weather in Paris?"}


def conversation(common: dict[str, Any]) -> dict[str, Any]:
    """A forced call, streamed; its result; and the final answer, streamed."""
    stream = litellm.completion(
        **common, messages=[ASK], tools=TOOLS, tool_choice="required", max_tokens=64, stream=True
    )
    call = litellm.stream_chunk_builder(list(stream), messages=[ASK]).choices[0].message.tool_calls[0]
    messages = [
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
    ]
    answer = litellm.completion(**common, messages=messages, tools=TOOLS, max_tokens=16, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    return {
        "name": call.function.name,
        "arguments": json.loads(call.function.arguments),
        "text": text,
        "too_long": too_long(common),
    }


def too_long(common: dict[str, Any]) -> str:
    """The class that the client raises."""
    try:
        litellm.completion(
            **common, messages=[{"role": "user", "content": "word " * 5000}], max_tokens=4, num_retries=0
        )
    except Exception as error:
        return type(error).__name__
    return "nothing"


def main() -> None:
    url, model = sys.argv[1:3]
    litellm.telemetry = False
    openai = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    anthropic = {"model": f"anthropic/{model}", "api_base": url, "api_key": "none"}
    print(json.dumps({"openai": conversation(openai), "anthropic": conversation(anthropic)}))


main()
