"""A key's limit counts a request until its last bytes, not longer: who has read them may send the next."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stretto.server.http.auth import Auth
from stretto.server.http.caller import Caller
from stretto.server.http.concurrency import LocalKeyCounts
from stretto.server.http.keys import Key, KeyRing, _digest
from tests.server.operations.serving import CHAT, served

KEY = "sk-limited-key"
RING = KeyRing([Key(_digest(KEY), Caller(name="limited", tenant="t"), concurrency_max=1)])


def scope(path: str) -> dict[str, Any]:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"authorization", f"Bearer {KEY}".encode()),
    ]
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


async def asked(app: Any, path: str, body: Any, sent: Any) -> None:
    """One request; `sent` is called with each message of the reply."""
    left = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: dict[str, Any]) -> None:
        sent(message)

    await app(scope(path), receive, send)


class Watched(LocalKeyCounts):
    running = 0

    async def begin(self, name: str, most: int) -> int | None:
        self.running += 1
        return await super().begin(name, most)

    def end(self, name: str, number: int) -> None:
        self.running -= 1
        super().end(name, number)


def test_a_request_ends_before_its_last_bytes_and_only_once() -> None:
    counts, seen = Watched(), []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await send({"type": "http.response.body", "body": b"last"})

    auth = Auth(app, keys=RING, public_paths=frozenset(), running=counts)
    asyncio.run(asked(auth, "/", {}, lambda message: seen.append((message.get("body"), counts.running))))
    assert seen == [(None, 1), (b"first", 1), (b"last", 0)]
    assert counts.running == 0


def test_a_request_that_fails_ends() -> None:
    counts = Watched()

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("broken")

    auth = Auth(app, keys=RING, public_paths=frozenset(), running=counts)
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(asked(auth, "/", {}, lambda _: None))
    assert counts.running == 0


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/chat/completions", CHAT, b"data: [DONE]\n\n"),
        ("/v1/completions", {"model": CHAT["model"], "prompt": "hi"}, b"data: [DONE]\n\n"),
        ("/v1/responses", {"model": CHAT["model"], "input": "hi"}, b"event: response.incomplete"),
        (
            "/v1/messages",
            {"model": CHAT["model"], "messages": CHAT["messages"], "max_tokens": 8},
            b"message_stop",
        ),
    ],
)
def test_the_last_event_of_a_stream_comes_with_the_end_of_its_body(
    path: str, body: dict[str, Any], last: bytes
) -> None:
    sent: list[dict[str, Any]] = []
    with served(keys=RING) as running:
        app = running.server.config.app
        asked_once = asked(app, path, {**body, "stream": True}, sent.append)
        asyncio.run_coroutine_threadsafe(asked_once, running.loop).result(20)
    assert sent[0]["status"] == 200
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    assert last in sent[-1]["body"]
    assert all(last not in message["body"] for message in sent[1:-1])
