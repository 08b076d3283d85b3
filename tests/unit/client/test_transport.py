"""Calls: matched, bounded, timed, tried again only where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from stretto.client.breaker import Circuit
from stretto.client.transport import Transport
from stretto.errors import CallTimeoutError, ModelNotFoundError, RuntimeLostError, RuntimeUnavailableError
from stretto.rpc.connection import MemoryConnection, memory_pair
from stretto.rpc.envelope import Call, Received, Reply
from stretto.rpc.messages import CancelParams, Empty, TokenizeParams, TokenizeResult, error_from
from stretto.testing.client_clock import VirtualLoop

ASK = TokenizeParams(text="x")


class Peer:
    """The other end: answers what it is told to, or nothing."""

    def __init__(self, connection: MemoryConnection, *, silent: int = 0) -> None:
        self.connection, self.calls, self._silent = connection, [], silent
        connection.open(self._receive, lambda _error: None)

    def _receive(self, envelope: Received) -> None:
        assert isinstance(envelope, Call)
        self.calls.append(envelope)
        if self._silent:
            self._silent -= 1
            return
        result = TokenizeResult(tokens=[1]) if envelope.method == "tokenize" else Empty()
        self.connection.send(Reply(envelope.id, result=result))


def connected(**options: Any) -> tuple[Transport, Peer, list[Exception | None]]:
    transport = Transport(calls_max=4, call_timeout_s=1.0)
    ours, theirs = memory_pair()
    lost: list[Exception | None] = []
    transport.attach(ours, notified=lambda _note: None, lost=lost.append)
    return transport, Peer(theirs, **options), lost


def run(work: Coroutine[Any, Any, None]) -> None:
    """In virtual time: a second of waiting takes none."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
        assert loop.unhandled == []
    finally:
        loop.close()


def test_a_call_is_answered_with_its_typed_result_or_its_error():
    async def scenario() -> None:
        transport, peer, _ = connected()
        assert (await transport.call("tokenize", ASK)).tokens == [1]
        pending = transport.send("tokenize", ASK)
        peer.connection.send(Reply(2, error=error_from(ModelNotFoundError("no such model"))))
        with pytest.raises(ModelNotFoundError, match="no such model"):
            await pending

    run(scenario())


def test_idempotent_calls_are_tried_again_others_are_not():
    async def scenario() -> None:
        transport, peer, _ = connected(silent=2)
        assert (await transport.call("tokenize", ASK)).tokens == [1]
        assert len(peer.calls) == 3
        assert transport.metrics.retries == 2
        transport, peer, _ = connected(silent=1)
        with pytest.raises(CallTimeoutError):
            await transport.call("cancel", CancelParams(stream_id="a"))
        assert len(peer.calls) == 1

    run(scenario())


def test_duplicate_and_late_answers_are_counted_and_ignored():
    async def scenario() -> None:
        transport, peer, _ = connected(silent=1)
        with pytest.raises(CallTimeoutError):
            await transport.send("tokenize", ASK)
        for _ in range(2):
            peer.connection.send(Reply(peer.calls[0].id, result=TokenizeResult(tokens=[9])))
        assert (await transport.call("tokenize", ASK)).tokens == [1]
        assert transport.metrics.stale_replies == 2

    run(scenario())


def test_only_so_many_calls_wait():
    async def scenario() -> None:
        transport, _, _ = connected(silent=100)
        pending = [transport.send("tokenize", ASK) for _ in range(4)]
        with pytest.raises(RuntimeUnavailableError, match="4 calls"):
            transport.send("tokenize", ASK)
        await asyncio.gather(*pending, return_exceptions=True)

    run(scenario())


def test_a_silent_worker_opens_the_circuit_and_one_probe_closes_it():
    async def scenario() -> None:
        transport, peer, _ = connected(silent=5)
        for _ in range(5):
            with pytest.raises(CallTimeoutError):
                await transport.send("tokenize", ASK)
        assert transport.breaker.state is Circuit.OPEN
        with pytest.raises(RuntimeUnavailableError):
            transport.send("tokenize", ASK)
        assert len(peer.calls) == 5
        await asyncio.sleep(10.0)
        for _ in range(2):
            await transport.send("tokenize", ASK)
        assert transport.breaker.state is Circuit.CLOSED

    run(scenario())


def test_a_lost_connection_fails_pending_calls_and_is_reported_once():
    async def scenario() -> None:
        transport, peer, lost = connected(silent=1)
        pending = transport.send("cancel", CancelParams(stream_id="a"))
        await asyncio.sleep(0.01)
        peer.connection.close()
        with pytest.raises(RuntimeLostError):
            await pending
        assert len(lost) == 1
        with pytest.raises(RuntimeUnavailableError):
            transport.send("cancel", CancelParams(stream_id="a"))

    run(scenario())


def test_an_idempotent_call_waits_for_the_next_worker():
    async def scenario() -> None:
        transport, peer, _ = connected(silent=1)
        asked = asyncio.create_task(transport.call("tokenize", ASK))
        await asyncio.sleep(0.01)
        peer.connection.close()
        await asyncio.sleep(0.5)
        ours, theirs = memory_pair()
        transport.attach(ours, notified=lambda _note: None, lost=lambda _error: None)
        Peer(theirs)
        assert (await asked).tokens == [1]

    run(scenario())


def test_a_call_that_cannot_be_sent_leaves_nothing_pending():
    class Broken(MemoryConnection):
        def send(self, envelope: Any) -> None:
            raise TypeError("cannot be encoded")

    async def scenario() -> None:
        transport = Transport(calls_max=1, call_timeout_s=1.0)
        transport.attach(Broken(), notified=lambda _note: None, lost=lambda _error: None)
        for _ in range(3):
            with pytest.raises(TypeError):
                transport.send("tokenize", ASK)

    run(scenario())
