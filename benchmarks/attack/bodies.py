"""Attacks with request bodies: wide, long, deep and compressed JSON from a client with a key."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from benchmarks.attack.registry import AttackTarget, attack

BODY_BYTES = (16 << 20) - 1024
CHAT = "/v1/chat/completions"


def wide(entry: str, count: int) -> str:
    """Numbered entries, joined by commas: as many as fit in a body."""
    parts, size = [], 0
    for number in range(count):
        part = entry.replace("#", str(number))
        size += len(part) + 1
        if size > BODY_BYTES:
            break
        parts.append(part)
    return ",".join(parts)


def chat_with(fields: str) -> bytes:
    return ('{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,' + fields + "}").encode()


async def together(target: AttackTarget, body: bytes, *, path: str = CHAT, count: int = 3) -> None:
    await asyncio.gather(*(target.post(path, body) for _ in range(count)))


@attack("unknown-fields", "16 MiB of 1,400,000 unknown fields")
async def unknown_fields(target: AttackTarget) -> None:
    await together(target, chat_with(wide('"a#":1', 1_400_000)))


@attack("logit-bias", "logit_bias with 1,300,000 bad keys")
async def logit_bias(target: AttackTarget) -> None:
    await together(target, chat_with('"logit_bias":{' + wide('"x#":1', 1_300_000) + "}"))


@attack("tools-wide", "16 MiB of malformed tools")
async def tools_wide(target: AttackTarget) -> None:
    await together(target, chat_with('"tools":[' + wide('{"type":"x"}', 1_600_000) + "]"))


@attack("messages-wide", "16 MiB of malformed messages")
async def messages_wide(target: AttackTarget) -> None:
    await together(target, ('{"messages":[' + wide('{"role":1}', 1_600_000) + "]}").encode())


@attack("tool-properties", "a tool whose parameters have 1,000,000 properties")
async def tool_properties(target: AttackTarget) -> None:
    properties = '{"type":"object","properties":{' + wide('"p#":{}', 1_000_000) + "}}"
    tool = '{"type":"function","function":{"name":"f","parameters":' + properties + "}}"
    await together(target, chat_with('"tools":[' + tool + "]"))


@attack("token-list", "a prompt of 5,000,000 invalid token ids")
async def token_list(target: AttackTarget) -> None:
    body = '{"prompt":[' + wide("-1", 5_000_000) + '],"max_tokens":1}'
    await together(target, body.encode(), path="/v1/completions")


@attack("brackets", "16 MiB of opening brackets")
async def brackets(target: AttackTarget) -> None:
    await together(target, b"[" * BODY_BYTES)


@attack("wide-everywhere", "the widest bodies on every route that reads JSON")
async def wide_everywhere(target: AttackTarget) -> None:
    routes: dict[str, str] = {
        "/v1/completions": "prompt",
        "/v1/responses": "input",
        "/v1/messages": "messages",
        "/v1/embeddings": "input",
        "/v1/rerank": "documents",
        "/tokenize": "content",
        "/detokenize": "tokens",
    }
    for path, field in routes.items():
        body = '{"' + field + '":[' + wide("{}", 5_500_000) + "]}"
        await target.post(path, body.encode())


@attack("gzip-bomb", "a body of 1 GB, compressed to 1 MB")
async def gzip_bomb(target: AttackTarget) -> None:
    await _compressed(target, gzip.compress(b" " * (64 << 20)) * 16)


@attack("gzip-slow", "compressed bodies of 16 MiB")
async def gzip_slow(target: AttackTarget) -> None:
    body: dict[str, Any] = target.chat("a b c d " * (BODY_BYTES // 8), max_tokens=1)
    await _compressed(target, gzip.compress(json.dumps(body).encode(), 1))


async def _compressed(target: AttackTarget, data: bytes) -> None:
    lines = ("content-type: application/json", "content-encoding: gzip", f"content-length: {len(data)}")
    async with asyncio.timeout(60), target.connection() as (reader, writer):
        writer.write(target.head("POST", CHAT, *lines, key=True) + data)
        await reader.read(1 << 16)
