"""A small OpenAI-like server with scripted timing and scripted faults, over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Script:
    """How one request is answered. `fault`: what goes wrong after `fault_after` tokens."""

    first_s: float = 0.0
    gap_s: float = 0.0
    fault: str = ""  # http_500 | cut | reset | silent | endless | error_event | html | garbage
    fault_after: int = 2
    per_event: int = 1  # tokens in one piece of text
    accepted: int = 0  # drafts, as reported
    rejected: int = 0
    pauses: dict[int, float] = field(default_factory=dict)  # before the token of this index


PLAIN = Script()


@dataclass
class Seen:
    """What the server was asked."""

    at_s: float
    headers: dict[str, str]
    body: dict
    sent_s: list[float] = field(default_factory=list)  # when each piece of text left


class ScriptedServer:
    def __init__(self, choose: Callable[[dict], Script], *, tokenizes: bool) -> None:
        self._choose = choose
        self._tokenizes = tokenizes
        self.seen: list[Seen] = []
        self.tokenized = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._route(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _route(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        length = int(headers.get("content-length", 0))
        body = json.loads(await reader.readexactly(length)) if length else {}
        if path == "/v1/models":
            _json(writer, 200, {"data": [{"id": "scripted"}]})
        elif path == "/tokenize" and self._tokenizes:
            self.tokenized += 1
            words = body["content"].split()
            _json(writer, 200, {"tokens": [7 for word in words for _ in range(1 + (len(word) > 7))]})
        elif path in {"/v1/chat/completions", "/v1/completions"}:
            seen = Seen(at_s=time.monotonic(), headers=headers, body=body)
            self.seen.append(seen)
            await self._stream(writer, seen, self._choose(body))
        else:
            _json(writer, 404, {"error": {"message": f"no {method} {path}"}})
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, seen: Seen, script: Script) -> None:
        if script.fault == "http_500":
            _json(writer, 500, {"error": {"message": "scripted failure"}})
            return
        if script.fault == "html":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>")
            return
        if script.fault == "garbage":
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
            return
        if script.fault == "silent":
            await asyncio.sleep(30)
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        _event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        await self._tokens(writer, seen, script)

    async def _tokens(self, writer: asyncio.StreamWriter, seen: Seen, script: Script) -> None:
        wanted = seen.body["max_tokens"]
        next_s = time.monotonic() + script.first_s
        index = 0
        while index < wanted or script.fault == "endless":
            next_s += script.pauses.get(index, 0.0)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            if script.fault and script.fault != "endless" and index >= script.fault_after:
                self._break(writer, script.fault)
                return
            text = f' w{index}"quoted"'
            _event(writer, {"choices": [{"delta": {"content": text}, "finish_reason": None}], "usage": None})
            await writer.drain()
            seen.sent_s.append(time.monotonic())
            index += script.per_event
            next_s += script.gap_s
        _event(writer, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        usage = {
            "prompt_tokens": 11,
            "completion_tokens": wanted,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {
                "accepted_prediction_tokens": script.accepted,
                "rejected_prediction_tokens": script.rejected,
            },
        }
        _event(writer, {"choices": [], "usage": usage, "timings": {"prompt_ms": 1.5}})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def _break(self, writer: asyncio.StreamWriter, fault: str) -> None:
        if fault == "error_event":
            _event(writer, {"error": {"message": "the model broke", "code": 500}})
            _chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        elif fault == "reset":
            writer.transport.abort()
        # cut: the caller closes the connection in the middle of the stream


def _json(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    data = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """In two halves, as networks do it."""
    half = len(data) // 2
    for part in (data[:half], data[half:]):
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def _event(writer: asyncio.StreamWriter, value: object) -> None:
    _chunk(writer, f"data: {json.dumps(value)}\r\n\r\n".encode())


@contextmanager
def scripted(
    script: Script | Callable[[dict], Script] = PLAIN, *, tokenizes: bool = True
) -> Iterator[ScriptedServer]:
    """A running server; gone afterwards, with whatever it was still doing."""
    choose = script if callable(script) else lambda _body: script
    server = ScriptedServer(choose, tokenizes=tokenizes)
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        listening = await asyncio.start_server(server._answer, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        async with listening:
            await stop.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
