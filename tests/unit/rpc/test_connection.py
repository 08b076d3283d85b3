"""Connections keep one contract, over a real socket and in memory; sockets let only their owner in."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stretto.errors import FrameError, PeerRefusedError
from stretto.rpc import messages as m
from stretto.rpc.connection import Connection, StreamConnection, memory_pair
from stretto.rpc.envelope import Call, Reply
from stretto.rpc.sockets import (
    connect_tcp,
    connect_unix,
    read_token,
    serve_tcp,
    serve_unix,
    write_token,
)

STATS = m.Empty()


class End:
    """One end of a connection, with all that came to it."""

    def __init__(self, connection: Connection, answer: Callable[[Call], None] | None = None) -> None:
        self.connection = connection
        self.received: list = []
        self.closed: list = []
        self.event = asyncio.Event()
        self._answer = answer
        connection.open(self._receive, self._closed)

    def _receive(self, envelope) -> None:
        self.received.append(envelope)
        if self._answer is not None:
            self._answer(envelope)
        self.event.set()

    def _closed(self, error) -> None:
        self.closed.append(error)
        self.event.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition(self):
                self.event.clear()
                await self.event.wait()


async def unix_pair(tmp_path: Path, **options) -> tuple[Connection, Connection]:
    accepted: asyncio.Future = asyncio.get_running_loop().create_future()
    tmp_path.chmod(0o700)
    server = await serve_unix(tmp_path / "s", accepted.set_result, **options)
    client = await connect_unix(tmp_path / "s")
    there = await accepted
    server.close()
    return client, there


async def pair_in_memory(tmp_path: Path) -> tuple[Connection, Connection]:
    return memory_pair()


PAIRS = pytest.mark.parametrize("make", [unix_pair, pair_in_memory], ids=["unix", "memory"])
Make = Callable[[Path], Awaitable[tuple[Connection, Connection]]]


@PAIRS
def test_calls_and_replies_arrive_in_order(make: Make, tmp_path):
    async def run():
        here, there = await make(tmp_path)
        server = End(there, lambda call: there.send(Reply(call.id, result=m.Empty())))
        client = End(here)
        for number in range(100):
            here.send(Call(number, "stats", STATS))
        await client.until(lambda end: len(end.received) == 100)
        assert [reply.id for reply in client.received] == list(range(100))
        assert server.received[3] == Call(3, "stats", STATS)
        assert here.counters.frames_sent == there.counters.frames_received == 100
        assert here.counters.bytes_received == there.counters.bytes_sent
        here.close()
        await server.until(lambda end: end.closed)

    asyncio.run(run())


@PAIRS
def test_both_ends_hear_of_the_end_exactly_once_and_late_words_are_dropped(make: Make, tmp_path):
    async def run():
        here, there = await make(tmp_path)
        client, server = End(here), End(there)
        here.close()
        here.close()
        here.send(Call(1, "stats", STATS))
        await server.until(lambda end: end.closed)
        await client.until(lambda end: end.closed)
        there.send(Reply(1, result=m.Empty()))
        await asyncio.sleep(0.02)
        assert (client.closed, server.closed) == ([None], [None])
        assert server.received == []
        assert here.is_closed
        assert there.is_closed

    asyncio.run(run())


@PAIRS
def test_data_received_before_open_is_not_lost(make: Make, tmp_path):
    async def run():
        here, there = await make(tmp_path)
        End(here)
        here.send(Call(1, "stats", STATS))
        await asyncio.sleep(0.05)
        late = End(there)
        here.send(Call(2, "stats", STATS))
        await late.until(lambda end: len(end.received) == 2)
        assert [call.id for call in late.received] == [1, 2]
        here.close()
        await late.until(lambda end: end.closed)

    asyncio.run(run())


@PAIRS
def test_data_sent_before_close_still_arrives(make: Make, tmp_path):
    async def run():
        here, there = await make(tmp_path)
        server, _ = End(there), End(here)
        for number in range(50):
            here.send(Call(number, "tokenize", m.TokenizeParams(text="x" * 10_000)))
        here.close()
        await server.until(lambda end: end.closed)
        assert len(server.received) == 50

    asyncio.run(run())


def test_bytes_that_are_no_frame_close_the_connection(tmp_path):
    async def run():
        here, there = await unix_pair(tmp_path)
        server, client = End(there), End(here)
        assert isinstance(here, StreamConnection)
        assert here.transport is not None
        here.transport.write(b"GET / HTTP/1.1\r\n\r\n")
        await server.until(lambda end: end.closed)
        await client.until(lambda end: end.closed)
        assert isinstance(server.closed[0], FrameError)

    asyncio.run(run())


def test_a_peer_that_does_not_read_is_cut_off_at_the_bound(tmp_path):
    async def run():
        here, there = await unix_pair(tmp_path, unsent_bytes_max=1 << 20)
        server, client = End(there), End(here)
        assert isinstance(here, StreamConnection)
        assert here.transport is not None
        here.transport.pause_reading()
        note = Reply(1, result=m.DetokenizeResult(text="x" * 50_000))
        for _ in range(200):
            there.send(note)
            assert there.unsent_bytes <= (1 << 20) + 60_000
            await asyncio.sleep(0)
        await server.until(lambda end: end.closed)
        assert "does not read" in str(server.closed[0])
        here.transport.resume_reading()
        await client.until(lambda end: end.closed)

    asyncio.run(run())


def test_the_socket_is_its_owners_alone(tmp_path):
    async def run():
        place = tmp_path / "run"
        server = await serve_unix(place / "s", lambda connection: None)
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE((place / "s").stat().st_mode) == 0o600
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_a_directory_that_others_can_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(PeerRefusedError, match="other users can access"):
        asyncio.run(serve_unix(tmp_path / "s", lambda connection: None))


def test_another_users_process_is_refused_by_the_kernels_word(tmp_path):
    async def run():
        accepted: list = []
        tmp_path.chmod(0o700)
        server = await serve_unix(tmp_path / "s", accepted.append, uid_allowed=os.getuid() + 1)
        client = End(await connect_unix(tmp_path / "s"))
        client.connection.send(Call(1, "runtime/info", m.Empty()))
        await client.until(lambda end: end.closed)
        server.close()
        assert (accepted, client.received) == ([], [])

    asyncio.run(run())


def test_tokens_lie_in_files_that_only_their_owner_reads(tmp_path):
    token = write_token(tmp_path / "token")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert read_token(tmp_path / "token") == token
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(PeerRefusedError, match="other users can read"):
        read_token(tmp_path / "token")
    (tmp_path / "short").write_text("abc")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(PeerRefusedError, match="no token"):
        read_token(tmp_path / "short")


def test_tcp_listens_on_loopback_only():
    async def run():
        server = await serve_tcp(0, lambda connection: connection.open(lambda _: None, lambda _: None))
        host, port = server.sockets[0].getsockname()
        assert host == "127.0.0.1"
        client = End(await connect_tcp(port))
        client.connection.close()
        await client.until(lambda end: end.closed)
        server.close()
        await server.wait_closed()

    asyncio.run(run())
