"""Mutual authentication of a TCP connection between machines, before its first frame.

Both ends prove that they know the cluster's token; the token itself is never sent:

    client → server   "STRETTO1", a nonce of 32 bytes
    server → client   a nonce of 32 bytes, HMAC(token, "server" + both nonces)
    client → server   HMAC(token, "client" + both nonces)
    server → client   one byte: accepted

Every message has a fixed size, so nothing is parsed before the peer is known. What an unknown peer can use is
bounded: `STRANGERS_MAX` connections, `TIMEOUT_S` each, one message of memory. The frames that follow are not
encrypted unless the listener has a TLS certificate.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable

from stretto.errors import PeerRefusedError
from stretto.rpc.connection import StreamConnection

MAGIC = b"STRETTO1"
NONCE_BYTES = PROOF_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
ACCEPTED = b"\x01"
TIMEOUT_S = 5.0
STRANGERS_MAX = 64


def proof(token: str, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), role + client_nonce + server_nonce, "sha256")


class Strangers:
    """The number of connections that have not authenticated yet. One per listener."""

    def __init__(self, limit: int = STRANGERS_MAX) -> None:
        self.limit = limit
        self.count = 0
        self.refused = 0


class _Handshake(asyncio.Protocol, ABC):
    """Collects exactly the bytes that are due, then hands the transport to the connection."""

    def __init__(self, connection: StreamConnection) -> None:
        self._connection = connection
        self._received = bytearray()
        self._due = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not a subclass
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self._fail, "no answer in time")
        self._begin()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= self._due > 0:
            message = bytes(self._received[: self._due])
            del self._received[: self._due]
            self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop()
        self._lost()

    def _stop(self) -> None:
        self._due = 0
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _fail(self, reason: str) -> None:
        """Close without saying why: an unknown peer learns nothing."""
        self._stop()
        self._received.clear()
        if self._transport is not None:
            self._transport.abort()

    def _pass_on(self) -> None:
        """The peer is known: from here on the transport belongs to the connection."""
        self._stop()
        transport, connection = self._transport, self._connection
        assert transport is not None
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self._received:
            connection.data_received(bytes(self._received))

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _take(self, message: bytes) -> None: ...

    def _lost(self) -> None:
        """The connection ended before the handshake did."""


class Accepting(_Handshake):
    """The listener's end. `accepted` gets the connection once its peer has proved the token."""

    def __init__(
        self,
        connection: StreamConnection,
        accepted: Callable[[StreamConnection], None],
        token: str,
        strangers: Strangers,
    ) -> None:
        super().__init__(connection)
        self._accepted = accepted
        self._token = token
        self._strangers = strangers
        self._counted = False
        self._nonces: tuple[bytes, bytes] | None = None

    def _begin(self) -> None:
        if self._strangers.count >= self._strangers.limit:
            self._strangers.refused += 1
            self._fail("too many unknown peers")
            return
        self._strangers.count += 1
        self._counted = True
        self._due = HELLO_BYTES

    def _take(self, message: bytes) -> None:
        if self._nonces is None:
            self._challenge(message)
        elif hmac.compare_digest(message, proof(self._token, b"client", *self._nonces)):
            self._send(ACCEPTED)
            self._forget()
            self._pass_on()
            self._accepted(self._connection)
        else:
            self._fail("wrong token")

    def _challenge(self, hello: bytes) -> None:
        if (
            not hello.startswith(MAGIC) or self._received
        ):  # more than a greeting: it did not wait for an answer
            self._fail("not a Stretto peer")
            return
        self._nonces = hello[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
        self._send(self._nonces[1] + proof(self._token, b"server", *self._nonces))
        self._due = PROOF_BYTES

    def _lost(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._strangers.count -= self._counted
        self._counted = False


class Proving(_Handshake):
    """The caller's end. `done` resolves to the connection, or raises PeerRefusedError."""

    def __init__(self, connection: StreamConnection, token: str) -> None:
        super().__init__(connection)
        self._token = token
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._proved = False
        self.done: asyncio.Future[StreamConnection] = asyncio.get_running_loop().create_future()

    def _begin(self) -> None:
        self._send(MAGIC + self._nonce)
        self._due = NONCE_BYTES + PROOF_BYTES

    def _take(self, message: bytes) -> None:
        if self._proved:
            self._pass_on()
            if not self.done.done():
                self.done.set_result(self._connection)
            return
        nonces = self._nonce, message[:NONCE_BYTES]
        if not hmac.compare_digest(message[NONCE_BYTES:], proof(self._token, b"server", *nonces)):
            self._fail("the listener does not know the cluster's token")
            return
        self._proved = True
        self._send(proof(self._token, b"client", *nonces))
        self._due = len(ACCEPTED)

    def _fail(self, reason: str) -> None:
        super()._fail(reason)
        self._refuse(reason)

    def _lost(self) -> None:
        self._refuse("the listener closed the connection: another token, or too many unknown peers")

    def _refuse(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(
                PeerRefusedError(reason, hint="every part of a cluster needs the same token")
            )
