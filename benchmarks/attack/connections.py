"""Attacks with connections: many, never-ending, pipelined, with trailers, and disconnecting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from benchmarks.attack.registry import AttackTarget, attack

HOLD_S = 3.0
FLOOD_S = 4.0
CHUNK_BYTES = 64 << 10
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(target: AttackTarget, first_bytes: Iterable[bytes]) -> list[Streams]:
    """Opens one connection per text and sends it. Refused connections are left out."""
    found = []
    for data in first_bytes:
        with contextlib.suppress(OSError):
            streams = await target.connect()
            streams[1].write(data)
            found.append(streams)
    return found


async def hold(streams: list[Streams], seconds: float = HOLD_S) -> None:
    await asyncio.sleep(seconds)
    for _, writer in streams:
        writer.transport.abort()


async def flood(writer: asyncio.StreamWriter, data: bytes, *, seconds: float, bytes_max: int) -> int:
    """Sends the same bytes repeatedly until the server closes, stops reading, or the time is over."""
    sent = 0
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            while sent < bytes_max:
                writer.write(data)
                await writer.drain()
                sent += len(data)
    return sent


@attack("lockout-get", "connections_max GETs that never send their declared body of 100 MB")
async def lockout_get(target: AttackTarget) -> None:
    head = target.head("GET", "/livez", "content-length: 100000000") + b"x"
    await hold(await opened(target, [head] * target.connections_max))


@attack("lockout-post", "connections_max POSTs without a key that never send their body after the 401")
async def lockout_post(target: AttackTarget) -> None:
    head = target.head("POST", "/v1/chat/completions", "content-length: 1000000") + b"{"
    await hold(await opened(target, [head] * target.connections_max))


@attack("lockout-chunked", "connections_max chunked POSTs without a key that never end")
async def lockout_chunked(target: AttackTarget) -> None:
    head = target.head("POST", "/v1/chat/completions", "transfer-encoding: chunked") + b"1\r\n{\r\n"
    await hold(await opened(target, [head] * target.connections_max))


@attack("lockout-silent", "twice connections_max connections that send nothing")
async def lockout_silent(target: AttackTarget) -> None:
    await hold(await opened(target, [b""] * (2 * target.connections_max)))


@attack("lockout-half-head", "twice connections_max connections that send half a head")
async def lockout_half_head(target: AttackTarget) -> None:
    await hold(await opened(target, [b"GET /livez HTTP/1.1\r\nhost: 127"] * (2 * target.connections_max)))


@attack("lockout-idle", "twice connections_max connections that stay open after one answered probe")
async def lockout_idle(target: AttackTarget) -> None:
    await hold(await opened(target, [target.head("GET", "/livez")] * (2 * target.connections_max)))


@attack("connect-flood", "connections opened and reset as fast as possible")
async def connect_flood(target: AttackTarget) -> None:
    end_s = time.monotonic() + FLOOD_S
    while time.monotonic() < end_s:
        for _, writer in await opened(target, [b"GET /"] * 20):
            writer.transport.abort()


@attack("drip-body", "20 POSTs with a key whose bodies arrive one byte at a time")
async def drip_body(target: AttackTarget) -> None:
    head = target.head("POST", "/v1/chat/completions", "content-length: 1000", key=True)
    streams = await opened(target, [head] * 20)
    for _ in range(20):
        await asyncio.sleep(0.1)
        for _, writer in streams:
            with contextlib.suppress(OSError):
                writer.write(b" ")
    await hold(streams, 0.0)


@attack("trailers-many", "200 MB of trailer fields after a 401")
async def trailers_many(target: AttackTarget) -> None:
    lines = b"x-a: " + b"b" * 50 + b"\r\n"
    await _trailers(target, lines * (CHUNK_BYTES // len(lines)))


@attack("trailer-giant", "one trailer field of up to 140 MB")
async def trailer_giant(target: AttackTarget) -> None:
    await _trailers(target, b"x" * CHUNK_BYTES)


@attack("trailers-with-key", "endless trailer fields after a chunked body that is read")
async def trailers_with_key(target: AttackTarget) -> None:
    await _trailers(target, b"x" * CHUNK_BYTES, key=True)


async def _trailers(target: AttackTarget, data: bytes, *, key: bool = False) -> None:
    async with target.connection() as (_, writer):
        writer.write(target.head("POST", "/v1/chat/completions", "transfer-encoding: chunked", key=key))
        writer.write(b"2\r\n{}\r\n0\r\nx-t: ")
        await flood(writer, data, seconds=FLOOD_S, bytes_max=200_000_000)


@attack("chunk-extensions", "200 MB of chunk extensions")
async def chunk_extensions(target: AttackTarget) -> None:
    async with target.connection() as (_, writer):
        writer.write(target.head("POST", "/v1/chat/completions", "transfer-encoding: chunked", key=True))
        writer.write(b"2;")
        await flood(writer, b"x" * CHUNK_BYTES, seconds=FLOOD_S, bytes_max=200_000_000)


@attack("chunks-tiny", "a body of 4 MB in chunks of one byte")
async def chunks_tiny(target: AttackTarget) -> None:
    async with target.connection() as (_, writer):
        writer.write(target.head("POST", "/v1/chat/completions", "transfer-encoding: chunked", key=True))
        await flood(writer, b"1\r\n \r\n" * 10_000, seconds=10.0, bytes_max=24_000_000)


@attack("pipeline-unread", "60 connections pipeline GETs and never read the answers")
async def pipeline_unread(target: AttackTarget) -> None:
    data = target.head("GET", "/livez") * 800
    streams = await opened(target, [b""] * 60)
    floods = (flood(writer, data, seconds=FLOOD_S, bytes_max=1_200_000) for _, writer in streams)
    await asyncio.gather(*floods)
    await hold(streams, 1.0)


@attack("pipeline-read", "one connection pipelines 26 MB of GETs and reads the answers")
async def pipeline_read(target: AttackTarget) -> None:
    async with target.connection() as (reader, writer):
        reading = asyncio.create_task(_discard(reader))
        await flood(writer, target.head("GET", "/livez") * 800, seconds=10.0, bytes_max=26_000_000)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 20):
            pass


@attack("pipeline-behind-generation", "a flood of pipelined requests after a running generation")
async def pipeline_behind_generation(target: AttackTarget) -> None:
    body = target.chat("Tell me a long story.", max_tokens=400)
    async with target.connection() as (_, writer):
        writer.write(target.request("/v1/chat/completions", body))
        await flood(writer, target.head("GET", "/livez") * 800, seconds=FLOOD_S, bytes_max=100_000_000)


@attack("ghosts", "40 generations, each with a second pipelined request, then reset")
async def ghosts(target: AttackTarget) -> None:
    await _leave(target, target.head("GET", "/livez"))


@attack("ghosts-plain", "40 generations whose clients reset the connection")
async def ghosts_plain(target: AttackTarget) -> None:
    await _leave(target, b"")


async def _leave(target: AttackTarget, behind: bytes) -> None:
    body = target.chat("Tell me a long story.", max_tokens=2000, ignore_eos=True)
    request = target.request("/v1/chat/completions", body) + behind
    streams = await opened(target, [request] * 40)
    await hold(streams, 0.5)
