"""Attacks on the worker by one client with a key: expensive replies, grammars and texts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from benchmarks.attack.registry import AttackTarget, attack

CHAT = "/v1/chat/completions"
LONG_CHARS = 16_600_000
CHAIN = 1300


async def send_and_leave(target: AttackTarget, path: str, body: Any, *, count: int, after_s: float) -> None:
    """Sends requests without waiting for the answers."""
    await asyncio.gather(*(target.post(path, body, timeout_s=after_s) for _ in range(count)))


def chained(length: int, *, salt: str = "") -> dict[str, Any]:
    """A JSON schema in which every definition is an array of one item, a reference to the next."""
    definitions: dict[str, Any] = {
        f"d{i}": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"$ref": f"#/$defs/d{i + 1}"}}
        for i in range(length)
    }
    definitions[f"d{length}"] = {"type": "string", "description": salt}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def guided(target: AttackTarget, schema: dict[str, Any]) -> dict[str, Any]:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    return target.chat(response_format=asked)


@attack("detokenize", "/detokenize of 430,000 tokens: the reply exceeds a message to the worker")
async def detokenize(target: AttackTarget) -> None:
    body = {"tokens": [1 + i % 400 for i in range(430_000)]}
    await asyncio.gather(*(target.post("/detokenize", body) for _ in range(4)))


@attack("tokenize long", "/tokenize of 16 MiB")
async def tokenize_long(target: AttackTarget) -> None:
    await asyncio.gather(*(target.post("/tokenize", {"prompt": "a " * (LONG_CHARS // 2)}) for _ in range(3)))


@attack("schema chain", "a JSON schema that is a chain of 1,300 references to arrays, three times")
async def schema_chain(target: AttackTarget) -> None:
    for _ in range(3):
        await target.post(CHAT, guided(target, chained(CHAIN)))


@attack("schema chain, varied", "the same with small variations, clients disconnect immediately")
async def schema_chain_varied(target: AttackTarget) -> None:
    for number in range(6):
        body = guided(target, chained(CHAIN + 13 * number, salt=f"{number}"))
        await send_and_leave(target, CHAT, body, count=1, after_s=0.05)


@attack("regex", "regular expressions of 60 KB whose clients disconnect")
async def regex(target: AttackTarget) -> None:
    patterns = ("a?" * 30_000, "(?:a|aa)+" * 6_600, ".{1,1000}" * 6_600, "(.*a.{20}b)|(.*c.{18}d)")
    bodies = [target.chat(guided_regex=pattern) for pattern in patterns]
    await asyncio.gather(*(send_and_leave(target, CHAT, body, count=2, after_s=0.3) for body in bodies))


@attack("regex, waiting", "one such expression whose client waits for its rejection")
async def regex_waiting(target: AttackTarget) -> None:
    await target.post(CHAT, target.chat(guided_regex="a?" * 30_000))


@attack("long texts", "ten texts of 16 MiB of 'a', clients disconnect after 2.5 s")
async def long_texts(target: AttackTarget) -> None:
    await send_and_leave(target, CHAT, target.chat("a" * LONG_CHARS), count=10, after_s=2.5)


@attack("fire and forget", "twelve texts of 16 MiB, clients disconnect after sending")
async def fire_and_forget(target: AttackTarget) -> None:
    body = target.request("/v1/completions", {"prompt": " " * LONG_CHARS, "max_tokens": 1})

    async def one() -> None:
        with contextlib.suppress(OSError):
            async with target.connection() as (_, writer):
                writer.write(body)
                await writer.drain()

    await asyncio.gather(*(one() for _ in range(12)))


@attack("many middle texts", "forty texts that may just fit: 200 KB each")
async def middle_texts(target: AttackTarget) -> None:
    bodies = [target.chat(f"{number} " + "ab" * 100_000) for number in range(40)]
    await asyncio.gather(*(target.post(CHAT, body, timeout_s=3.0) for body in bodies))
