"""The attacks by name, and their target: the server's address, a key, and raw connections."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

REPLY_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class AttackTarget:
    """The server under attack. `key` is a valid API key; unauthenticated attacks do not use it."""

    host: str
    port: int
    key: str
    connections_max: int

    def cache_bytes(self) -> int:
        """Host memory of the worker's prefix cache, from `/metrics`."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request("GET", "/metrics", headers={"authorization": f"Bearer {self.key}"})
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = re.findall(r"^stretto_prefix_cache_bytes\{[^}]*\} (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, found)))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await self.connect()
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def head(self, method: str, path: str, *headers: str, key: bool = False) -> bytes:
        """A request head; `headers` are whole lines such as "content-length: 5"."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}:{self.port}", *headers]
        if key:
            lines.append(f"authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def request(self, path: str, body: Any, *, key: bool = True) -> bytes:
        """A whole POST. `body` is bytes, or something for json.dumps."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = ("content-type: application/json", f"content-length: {len(data)}")
        return self.head("POST", path, *lines, key=key) + data

    async def post(
        self, path: str, body: Any, *, key: bool = True, timeout_s: float = 60.0
    ) -> tuple[int, bytes]:
        """Status and reply; (0, b"") if the connection broke or `timeout_s` passed."""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, IndexError):
            async with asyncio.timeout(timeout_s), self.connection() as (reader, writer):
                writer.write(
                    self.request(path, body, key=key).replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
                )
                await writer.drain()
                reply = await reader.read(REPLY_BYTES_MAX)
                while part := await reader.read(1 << 20):
                    reply += part
                return int(reply.split(b" ", 2)[1]), reply.partition(b"\r\n\r\n")[2]
        return 0, b""

    def chat(self, text: str = "Say hello.", **fields: Any) -> dict[str, Any]:
        message = {"role": "user", "content": text}
        return {"messages": [message], "max_tokens": 8, **fields}


Run = Callable[[AttackTarget], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    about: str
    run: Run
    timeout_s: float  # per repetition


ATTACKS: dict[str, Attack] = {}


def attack(name: str, about: str, *, timeout_s: float = 120.0) -> Callable[[Run], Run]:
    """Registers an attack under a unique name."""

    def register(run: Run) -> Run:
        if name in ATTACKS:
            raise ValueError(f"duplicate attack name {name}")
        ATTACKS[name] = Attack(name, about, run, timeout_s)
        return run

    return register
