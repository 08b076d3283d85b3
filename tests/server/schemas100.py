"""Answers held to a schema, by the real model over HTTP: 100 schemas and 50 forced tool calls, temperature 1.

    python -m tests.server.schemas100 --json FILE --check

Bar: at least 95 of 100 complete within 512 tokens, every complete one is valid, every forced call parses and
fits its tool. `--url` uses a server that already runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai

from tests.server.process import served
from tests.server.schemas import all_schemas

TOKENS_MAX = 512
AT_ONCE = 4
COMPLETE_MIN = 0.95


async def ask_schema(
    client: openai.AsyncOpenAI, model: str, name: str, schema: Any, seed: int
) -> dict[str, Any]:
    prompt = f"Write one example of a {name.partition('-')[0]} as JSON."
    shape = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
    reply = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        response_format=shape,  # type: ignore[arg-type]
        temperature=1.0,
        seed=seed,
        max_tokens=TOKENS_MAX,
    )
    (choice,) = reply.choices
    complete = choice.finish_reason == "stop"
    found = {
        "name": name,
        "complete": complete,
        "tokens": reply.usage.completion_tokens if reply.usage else 0,
    }
    return {**found, "problem": problem(choice.message.content or "", schema) if complete else None}


def problem(text: str, schema: Any) -> str | None:
    """What is wrong with an answer, nothing where it fits."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}: {text[:200]}"
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    return next((error.message[:200] for error in validator.iter_errors(value)), None)


async def ask_tool(client: openai.AsyncOpenAI, model: str, at: int) -> dict[str, Any]:
    """Two tools are offered; every second call is forced by name, the others by `required`."""
    schemas = [(name, schema) for name, schema in all_schemas() if schema.get("type") == "object"]
    offered = [schemas[(at + step) % len(schemas)] for step in range(2)]
    tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in offered]
    forced: Any = {"type": "function", "function": {"name": offered[1][0]}} if at % 2 else "required"
    reply = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Use a tool to note a {offered[0][0].partition('-')[0]}."}],
        tools=tools,  # type: ignore[arg-type]
        tool_choice=forced,
        parallel_tool_calls=False,
        temperature=1.0,
        seed=at,
        max_tokens=TOKENS_MAX,
    )
    (choice,) = reply.choices
    calls = choice.message.tool_calls or []
    found = {"complete": choice.finish_reason == "tool_calls", "calls": len(calls)}
    if len(calls) != 1 or calls[0].type != "function":
        return {**found, "problem": None if choice.finish_reason == "length" else "not one call"}
    known = dict(offered)
    name = calls[0].function.name
    if name not in known or (at % 2 and name != offered[1][0]):
        return {**found, "problem": f"called {name}"}
    return {**found, "problem": problem(calls[0].function.arguments, known[name])}


async def measure(url: str, *, schemas: int, tools: int) -> dict[str, Any]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(work: Any) -> dict[str, Any]:
        async with gate:
            found: dict[str, Any] = await work
            return found

    started_s = time.monotonic()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) as client:
        model = (await client.models.list()).data[0].id
        chosen = all_schemas()[:schemas]
        answers = await asyncio.gather(
            *(one(ask_schema(client, model, name, schema, at)) for at, (name, schema) in enumerate(chosen))
        )
        calls = await asyncio.gather(*(one(ask_tool(client, model, at)) for at in range(tools)))
    return {
        "model": model,
        "schemas": len(answers),
        "complete": sum(answer["complete"] for answer in answers),
        "invalid": [answer for answer in answers if answer["problem"]],
        "incomplete": [answer["name"] for answer in answers if not answer["complete"]],
        "tool_calls": len(calls),
        "tool_calls_parsed": sum(call["complete"] and not call["problem"] for call in calls),
        "tool_problems": [call for call in calls if call["problem"]],
        "tokens_max": TOKENS_MAX,
        "seconds": round(time.monotonic() - started_s, 1),
    }


def passed(found: dict[str, Any]) -> bool:
    tried = found["schemas"] > 0 and found["tool_calls"] > 0
    enough = tried and found["complete"] >= COMPLETE_MIN * found["schemas"]
    return enough and not found["invalid"] and found["tool_calls_parsed"] == found["tool_calls"]


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with served() as own:
        yield own


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", help="a server that already runs")
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--tools", type=int, default=50)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--check", action="store_true", help="exit 1 if the bar is missed")
    options = parser.parse_args()
    with _server(options.url) as url:
        found = asyncio.run(measure(url, schemas=options.schemas, tools=options.tools))
    found["passed"] = passed(found)
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(options.check and not found["passed"])


if __name__ == "__main__":
    sys.exit(main())
