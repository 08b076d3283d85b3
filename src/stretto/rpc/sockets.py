"""Sockets between client and worker: a Unix socket accessible only to its owner, or loopback TCP with a
token.

Directory 0700, socket 0600, and the peer's uid verified through the kernel. Over TCP the first call must
carry the token from a file of mode 0600; the worker checks it (`token_matches`).
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from stretto.errors import PeerRefusedError
from stretto.rpc.connection import UNSENT_BYTES_MAX, StreamConnection
from stretto.rpc.frames import FRAME_BYTES_MAX

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
_UCRED = struct.Struct("3i")  # pid, uid, gid


async def serve_unix(
    path: Path,
    accepted: Callable[[StreamConnection], None],
    *,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    unsent_bytes_max: int = UNSENT_BYTES_MAX,
    uid_allowed: int | None = None,
) -> asyncio.Server:
    """Listen at `path`; `accepted` gets only connections of the same user."""
    private_directory(path.parent)
    path.unlink(missing_ok=True)
    uid = os.getuid() if uid_allowed is None else uid_allowed
    listener = _private_listener(path)
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(
        lambda: _Accepting(accepted, frame_bytes_max, unsent_bytes_max, uid), sock=listener
    )


async def serve_tcp(
    port: int,
    accepted: Callable[[StreamConnection], None],
    *,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    unsent_bytes_max: int = UNSENT_BYTES_MAX,
) -> asyncio.Server:
    """Listen on loopback. Peers must authenticate, because the kernel does not identify them."""
    return await asyncio.get_running_loop().create_server(
        lambda: _Accepting(accepted, frame_bytes_max, unsent_bytes_max, None), LOOPBACK, port
    )


async def connect_unix(path: Path, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> StreamConnection:
    _, connection = await asyncio.get_running_loop().create_unix_connection(
        lambda: StreamConnection(frame_bytes_max=frame_bytes_max), str(path)
    )
    return connection


async def connect_tcp(port: int, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> StreamConnection:
    """The caller's first call must be `runtime/authenticate` with the token."""
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: StreamConnection(frame_bytes_max=frame_bytes_max), LOOPBACK, port
    )
    return connection


class _Accepting(StreamConnection):
    """A server's end: verifies the peer before the connection is used."""

    def __init__(
        self,
        accepted: Callable[[StreamConnection], None],
        frame_bytes_max: int,
        unsent_bytes_max: int,
        uid_allowed: int | None,
    ) -> None:
        super().__init__(frame_bytes_max=frame_bytes_max, unsent_bytes_max=unsent_bytes_max)
        self._accepted = accepted
        self._uid_allowed = uid_allowed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._uid_allowed is not None and peer_uid(transport) != self._uid_allowed:
            self.close(PeerRefusedError("the peer is a process of another user"))
            return
        self._accepted(self)


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """Uid of the peer process; None if the kernel does not provide it."""
    found = transport.get_extra_info("socket")
    if found is None or not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def private_directory(path: Path) -> None:
    """Create it with mode 0700, or reject one that other users can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PeerRefusedError(
            f"other users can access {path}", hint="use your own directory with mode 0700 for the socket"
        )


def write_token(path: Path) -> str:
    """Write a new token to a file of mode 0600."""
    token = secrets.token_hex(TOKEN_BYTES)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return token


def read_token(path: Path) -> str:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise PeerRefusedError(f"other users can read {path}", hint="chmod 600 the token file")
    token = path.read_text(encoding="ascii").strip()
    if len(token) < TOKEN_BYTES:
        raise PeerRefusedError(f"{path} contains no token", hint=f"write at least {TOKEN_BYTES} characters")
    return token


def token_matches(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _private_listener(path: Path) -> socket.socket:
    """Created with mode 0600, so that other users can never connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener
