"""Links between machines: both ends prove the cluster's token before the first frame, with or without TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess

import pytest

from stretto.errors import PeerRefusedError, RuntimeUnavailableError, SettingsError
from stretto.rpc import handshake
from stretto.rpc import messages as m
from stretto.rpc.envelope import Call, Reply
from stretto.rpc.handshake import MAGIC, Strangers
from stretto.rpc.peers import PeerAccess, bind_peers, connect_peer, serve_peers

TOKEN = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
HOST = "127.0.0.1"


class Listener:
    """A listener on loopback, and the connections that it accepted."""

    def __init__(self, access: PeerAccess, **options) -> None:
        self.access, self.options = access, options
        self.accepted: list = []
        self.strangers = Strangers(**options)

    async def __aenter__(self):
        bound = bind_peers(HOST, token=self.access.token)
        self.port = bound.getsockname()[1]
        self._server = await serve_peers(bound, self.access, self._accept, strangers=self.strangers)
        return self

    async def __aexit__(self, *_error) -> None:
        self._server.close()
        for connection in self.accepted:
            connection.close()

    def _accept(self, connection) -> None:
        self.accepted.append(connection)
        connection.open(
            lambda call: connection.send(Reply(call.id, result=m.TokenizeResult(tokens=[1, 2]))),
            lambda _error: None,
        )

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition(self):
                await asyncio.sleep(0.01)


async def ask(connection) -> object:
    """One call and its answer."""
    answer = asyncio.get_running_loop().create_future()
    connection.open(answer.set_result, lambda _error: None)
    connection.send(Call(1, "tokenize", m.TokenizeParams(text="hello")))
    async with asyncio.timeout(10):
        return await answer


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What a raw peer receives until the listener closes."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def test_calls_pass_once_both_ends_know_the_token():
    async def run():
        access = PeerAccess(TOKEN)
        async with Listener(access) as listener:
            connection = await connect_peer(HOST, listener.port, access)
            assert isinstance(await ask(connection), Reply)
            assert listener.strangers.count == 0
            connection.close()

    asyncio.run(run())


def test_a_wrong_token_is_refused_by_either_end():
    async def run():
        async with Listener(PeerAccess(TOKEN)) as listener:
            with pytest.raises(PeerRefusedError, match="does not know"):
                await connect_peer(HOST, listener.port, PeerAccess(OTHER))
            await listener.until(lambda one: one.strangers.count == 0)
            assert listener.accepted == []

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: here\r\n\r\n" + b"x" * 64,
        MAGIC + b"n" * 32 + b"\0\0\0\2{}",  # a frame before the proof
        b"\0\0\0\x40" + b'{"jsonrpc": "2.0", "id": 1, "method": "stats", "params": {}}    ',
    ],
    ids=["http", "early frame", "plain frame"],
)
def test_a_peer_without_proof_gets_nothing_and_reaches_nothing(sent):
    async def run():
        async with Listener(PeerAccess(TOKEN)) as listener:
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write(sent)
            assert await ended(reader) == b""
            assert listener.accepted == []
            writer.close()

    asyncio.run(run())


def test_a_replayed_proof_is_refused():
    """The nonces differ each time, so that what was overheard is worth nothing."""

    async def run():
        async with Listener(PeerAccess(TOKEN)) as listener:
            nonce = b"n" * 32
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write(MAGIC + nonce)
            first = await reader.readexactly(64)
            overheard = handshake.proof(TOKEN, b"client", nonce, first[:32])
            again_reader, again = await asyncio.open_connection(HOST, listener.port)
            again.write(MAGIC + nonce)
            await again_reader.readexactly(64)
            again.write(overheard)
            assert await ended(again_reader) == b""
            assert listener.accepted == []
            writer.close()
            again.close()

    asyncio.run(run())


def test_silent_peers_are_closed_and_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.2)

    async def run():
        async with Listener(PeerAccess(TOKEN), limit=2) as listener:
            silent = [await asyncio.open_connection(HOST, listener.port) for _ in range(2)]
            await listener.until(lambda one: one.strangers.count == 2)
            third_reader, third = await asyncio.open_connection(HOST, listener.port)
            assert await ended(third_reader) == b""
            assert listener.strangers.refused == 1
            for reader, _ in silent:
                assert await ended(reader) == b""
            await listener.until(lambda one: one.strangers.count == 0)
            for writer in (third, *(writer for _, writer in silent)):
                writer.close()

    asyncio.run(run())


def test_a_port_without_a_listener_is_unavailable():
    async def run():
        with socket.socket() as unused:
            unused.bind((HOST, 0))
            with pytest.raises(RuntimeUnavailableError):
                await connect_peer(HOST, unused.getsockname()[1], PeerAccess(TOKEN))

    asyncio.run(run())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_other_machines_are_refused_without_a_token(host):
    with pytest.raises(SettingsError, match="without a cluster token"):
        bind_peers(host, token=None)


def test_a_short_token_is_refused():
    with pytest.raises(SettingsError, match="6 characters"):
        PeerAccess("secret")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: TLS between machines is not tested")
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    making = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stretto"
    )
    subprocess.run(
        [*making.split(), "-out", str(paths[0]), "-keyout", str(paths[1])], check=True, capture_output=True
    )
    return paths


def test_tls_carries_the_same_handshake(certificate):
    async def run():
        cert, key = map(str, certificate)
        access = PeerAccess(TOKEN, cert, key, cert)
        async with Listener(access) as listener:
            connection = await connect_peer(HOST, listener.port, access)
            assert isinstance(await ask(connection), Reply)
            connection.close()
            with pytest.raises((PeerRefusedError, RuntimeUnavailableError)):
                await connect_peer(HOST, listener.port, PeerAccess(TOKEN))  # no TLS
            assert len(listener.accepted) == 1

    asyncio.run(run())
