from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stretto.errors import QueueFullError
from stretto.server.http.sse import PING, ClientGone, EventStream, JsonReply, SseWriter, until_gone

SCOPE = {"type": "http", "path": "/v1/chat/completions", "headers": [], "state": {}}


class Peer:
    """One client: what it was sent, and when it leaves."""

    def __init__(self, leaves_after_s: float | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self._leaves_after_s = leaves_after_s

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(3600 if self._leaves_after_s is None else self._leaves_after_s)
        return {"type": "http.disconnect"}

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.sent]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def test_work_that_ends_first_wins() -> None:
    async def work() -> int:
        return 7

    assert asyncio.run(until_gone(Peer().receive, work())) == 7


def test_a_client_that_leaves_cancels_the_work() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append("cancelled")

    with pytest.raises(ClientGone):
        asyncio.run(until_gone(Peer(0.01).receive, work()))
    assert seen == ["cancelled"]


def test_a_stream_starts_with_its_first_event() -> None:
    async def produce(wire: SseWriter) -> None:
        assert not wire.started
        await wire.write(b"data: 1\n\n")
        await wire.write(b"data: 2\n\n")

    peer = Peer()
    asyncio.run(EventStream(produce, ping_interval_s=60)(SCOPE, peer.receive, peer.send))
    assert peer.kinds == ["http.response.start", *["http.response.body"] * 3]
    assert peer.body == b"data: 1\n\ndata: 2\n\n"
    assert peer.sent[-1]["more_body"] is False


def test_a_rejection_before_the_first_event_is_raised() -> None:
    async def produce(wire: SseWriter) -> None:
        raise QueueFullError("full")

    peer = Peer()
    with pytest.raises(QueueFullError):
        asyncio.run(EventStream(produce, ping_interval_s=60)(SCOPE, peer.receive, peer.send))
    assert peer.sent == []


def test_a_later_failure_is_the_last_event() -> None:
    async def produce(wire: SseWriter) -> None:
        await wire.write(b"data: 1\n\n")
        raise QueueFullError("full")

    peer = Peer()
    asyncio.run(EventStream(produce, ping_interval_s=60)(SCOPE, peer.receive, peer.send))
    assert b'"code":"queue_full"' in peer.body
    assert peer.sent[-1]["more_body"] is False


def test_pings_fill_silence_only() -> None:
    async def produce(wire: SseWriter) -> None:
        await asyncio.sleep(0.12)
        for _ in range(20):
            await wire.write(b"data: x\n\n")
            await asyncio.sleep(0.005)

    peer = Peer()
    asyncio.run(EventStream(produce, ping_interval_s=0.03)(SCOPE, peer.receive, peer.send))
    bodies = [message.get("body") for message in peer.sent]
    first = bodies.index(b"data: x\n\n")
    assert bodies[:first].count(PING) >= 2
    assert bodies[first:].count(PING) <= 2
    assert peer.kinds.count("http.response.start") == 1


def test_no_ping_after_the_end() -> None:
    async def run(peer: Peer) -> None:
        async def produce(wire: SseWriter) -> None:
            await wire.write(b"x")

        await EventStream(produce, ping_interval_s=0.01)(SCOPE, peer.receive, peer.send)
        await asyncio.sleep(0.05)

    peer = Peer()
    asyncio.run(run(peer))
    assert peer.body == b"x"


def test_a_complete_reply_is_cancelled_when_the_client_disconnects() -> None:
    async def work() -> bytes:
        await asyncio.sleep(3600)
        return b"{}"

    peer = Peer(0.01)
    asyncio.run(JsonReply(work)(SCOPE, peer.receive, peer.send))
    assert peer.sent == []


def test_a_refusal_after_a_second_of_waiting_still_has_its_status() -> None:
    async def produce(wire: SseWriter) -> None:
        await asyncio.sleep(1.2)
        raise QueueFullError("full")

    peer = Peer()
    with pytest.raises(QueueFullError):
        asyncio.run(
            EventStream(produce, ping_interval_s=0.1, first_byte_s=30)(SCOPE, peer.receive, peer.send)
        )
    assert peer.sent == []


def test_a_stream_without_a_token_starts_after_first_byte_s() -> None:
    async def produce(wire: SseWriter) -> None:
        await asyncio.sleep(0.3)
        raise QueueFullError("full")

    peer = Peer()
    asyncio.run(EventStream(produce, ping_interval_s=60, first_byte_s=0.05)(SCOPE, peer.receive, peer.send))
    assert peer.sent[0]["status"] == 200
    assert peer.body.startswith(PING)
    assert b'"retry_after_s":1' in peer.body
