"""Runs in the clients' own environment: tools and streams through LangChain, three APIs.

Arguments: the server's address and the model. Prints one JSON object with the results.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=20)
    inhabitants: int


def conversation(chat: Any) -> dict[str, Any]:
    ask = HumanMessage("What is the weather in Paris?")
    calling = chat.bind_tools([weather], tool_choice="any")
    said = None
    for chunk in calling.stream([ask]):
        said = chunk if said is None else said + chunk
    call = said.tool_calls[0]
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    pieces = [chunk.text for chunk in chat.bind_tools([weather]).stream([ask, said, result])]
    return {
        "name": call["name"],
        "arguments": call["args"],
        "text": "".join(map(str, pieces)),
        "overflow": overflows(chat),
    }


def overflows(chat: Any) -> bool:
    try:
        chat.invoke("word " * 5000)
    except ContextOverflowError:
        return True
    return False


def main() -> None:
    url, model = sys.argv[1:3]
    common = {"model": model, "api_key": "none", "max_tokens": 64, "max_retries": 0, "timeout": 120}
    openai = ChatOpenAI(base_url=f"{url}/v1", **common)
    anthropic = ChatAnthropic(base_url=url, **common)
    responses = ChatOpenAI(base_url=f"{url}/v1", use_responses_api=True, **common)
    place = openai.with_structured_output(Place).invoke("Name a city and its inhabitants.")
    found = {
        "openai": conversation(openai),
        "anthropic": conversation(anthropic),
        "responses": conversation(responses),
        "place": place.model_dump(),
    }
    print(json.dumps(found))


main()
