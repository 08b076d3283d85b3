"""Measures whether guided answers complete and are valid, and the cost of a guided token.

    python benchmarks/structured.py [--json FILE] [--check] [--quick] [--url URL]

SmolLM2 over HTTP, temperature 0.7, `max_tokens` 100: 200 answers over 14 schemas and three ways to force a
tool. Each can complete within the limit, so none may end by length, and each must be valid. The cost of a
token is that of one guided stream against the same prompt without a schema. `--check` exits 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.server.process import served

ANSWERS, QUICK_ANSWERS = 200, 34
TOKENS_MAX = 100
TEMPERATURE = 0.7
AT_ONCE = 4
COST_MAX = 1.5  # time of a guided token relative to an unguided one

TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}


def record(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    wanted = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": wanted, "additionalProperties": False}


LEAF = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
SCHEMAS: dict[str, Any] = {
    "mood and score": record({"mood": {"enum": ["happy", "sad", "very angry"]}, "score": COUNT}),
    "person": record({"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}}),
    "nested": record({"user": record({"name": TEXT, "address": record({"city": TEXT, "zip": TEXT})})}),
    "list of texts": record({"tags": {"type": "array", "items": TEXT}}),
    "list of records": {"type": "array", "items": record({"item": TEXT, "price": NUMBER}), "minItems": 1},
    "optional fields": record({"title": TEXT, "note": TEXT, "done": {"type": "boolean"}}, ["done"]),
    "free text": record({"summary": TEXT, "details": TEXT}),
    "numbers": record({"x": NUMBER, "y": NUMBER, "z": {"type": "integer", "minimum": 1000}}),
    "recursive list": {"$ref": "#/$defs/node", "$defs": {"node": record({"value": TEXT, "next": LEAF})}},
    "tree": {
        "$ref": "#/$defs/t",
        "$defs": {"t": record({"n": COUNT, "kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}})},
    },
    "union": {
        "anyOf": [
            record({"kind": {"const": "circle"}, "radius": NUMBER}),
            record({"kind": {"const": "square"}, "side": NUMBER}),
        ]
    },
    "dates": record({"day": {"type": "string", "format": "date"}, "title": TEXT}),
    "pattern": record({"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,6}$"}, "label": TEXT}),
    "any object": {"type": "object"},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": record(parameters)},
    }
    for name, parameters in (
        ("get_weather", {"city": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}}),
        ("send_mail", {"to": TEXT, "subject": TEXT, "body": TEXT}),
        ("add", {"numbers": {"type": "array", "items": NUMBER}}),
    )
]
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}  # type: ignore[index]
FORCED: dict[str, dict[str, Any]] = {
    "required tool": {"tool_choice": "required"},
    "required tool, one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "named tool": {"tool_choice": {"type": "function", "function": {"name": "send_mail"}}},
}


def valid(value: Any, schema: Any) -> bool:
    return bool(jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid(value))


def judged(message: Any, schema: Any) -> bool:
    """Whether the whole answer follows the schema."""
    try:
        if schema is not None:
            return valid(json.loads(message.content or ""), schema)
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
    except ValueError:
        return False
    return bool(calls) and not message.content and all(valid(args, PARAMETERS[name]) for name, args in calls)


async def ask(client: openai.AsyncOpenAI, model: str, at: int) -> dict[str, Any]:
    names = [*SCHEMAS, *FORCED]
    name = names[at % len(names)]
    schema = SCHEMAS.get(name)
    options: dict[str, Any] = {"tools": TOOLS, **FORCED[name]} if schema is None else {}
    if schema is not None:
        shape = {"name": "answer", "schema": schema}
        options["response_format"] = {"type": "json_schema", "json_schema": shape}
    reply = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Give me an example: {name}. Number {at}."}],
        temperature=TEMPERATURE,
        seed=at,
        max_tokens=TOKENS_MAX,
        **options,
    )
    (choice,) = reply.choices
    tokens = reply.usage.completion_tokens if reply.usage else 0
    truncated = choice.finish_reason == "length"
    return {"name": name, "truncated": truncated, "valid": judged(choice.message, schema), "tokens": tokens}


async def token_ms(client: openai.AsyncOpenAI, model: str, schema: Any, rounds: int) -> float:
    """Milliseconds between the tokens of one stream, the median of several."""
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    options: dict[str, Any] = {} if schema is None else {"response_format": shape}
    found = []
    for seed in range(rounds):
        stream = await client.chat.completions.create(
            model=model,
            messages=[
                {"role": "user", "content": "Tell me of a town by the sea, its harbour and its people."}
            ],
            temperature=TEMPERATURE,
            seed=seed,
            max_tokens=TOKENS_MAX,
            stream=True,
            **options,
        )
        times = [time.perf_counter() async for chunk in stream if chunk.choices[0].delta.content]
        if len(times) > 8:
            found.append((times[-1] - times[0]) / (len(times) - 1) * 1e3)
    return statistics.median(found)


async def measure(url: str, answers: int) -> dict[str, Any]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(at: int) -> dict[str, Any]:
        async with gate:
            return await ask(client, model, at)

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        model = (await client.models.list()).data[0].id
        found = await asyncio.gather(*map(one, range(answers)))
        rounds = 3 if answers < ANSWERS else 9
        free_ms = await token_ms(client, model, None, rounds)
        guided_ms = await token_ms(client, model, SCHEMAS["free text"], rounds)
    return {
        "model": model,
        "machine": platform.machine(),
        "answers": len(found),
        "ended_by_length": sum(one["truncated"] for one in found),
        "invalid": sum(not one["valid"] for one in found),
        "at_the_limit": sum(one["tokens"] >= TOKENS_MAX - 2 for one in found),
        "tokens_mean": round(statistics.mean(one["tokens"] for one in found), 1),
        "free_token_ms": round(free_ms, 2),
        "guided_token_ms": round(guided_ms, 2),
        "cost": round(guided_ms / free_ms, 3),
        "failed": [one for one in found if one["truncated"] or not one["valid"]][:20],
    }


def missed(report: dict[str, Any]) -> list[str]:
    bars = {
        "an answer ended by length": report["ended_by_length"] == 0,
        "an answer is invalid": report["invalid"] == 0,
        f"a guided token costs more than {COST_MAX} unguided ones": report["cost"] <= COST_MAX,
    }
    return [name for name, holds in bars.items() if not holds]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two answers of each kind")
    parser.add_argument("--url", help="a running server")
    options = parser.parse_args()
    with nullcontext(options.url) if options.url else served("--context-window", "2048") as url:
        report = asyncio.run(measure(url, QUICK_ANSWERS if options.quick else ANSWERS))
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    problems = missed(report)
    for problem in problems:
        print(f"missed: {problem}", file=sys.stderr)
    return 1 if options.check and problems else 0


if __name__ == "__main__":
    sys.exit(main())
