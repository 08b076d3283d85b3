"""Where engine and runtime meet: a Unix socket that only its owner reaches, or loopback TCP with a token.

Directory 0700, socket 0600, and the peer's uid asked of the kernel. Over TCP the first call must bring the
token that lies in a file of mode 0600; the runtime checks it (`token_matches`).
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
    """Listen at `path`; `accepted` gets connections of our own user only."""
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
    """Listen on loopback. Whoever connects must authenticate: the kernel does not say who it is."""
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
    """A server's end: looks at the peer before anybody hears of it."""

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
            self.close(PeerRefusedError("another user's process"))
            return
        self._accepted(self)


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """Whose process is at the other end; None where the kernel does not tell."""
    found = transport.get_extra_info("socket")
    if found is None or not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def private_directory(path: Path) -> None:
    """Make it with mode 0700, or refuse one that others can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PeerRefusedError(
            f"others can reach {path}", hint="give a directory of your own with mode 0700 for the socket"
        )


def write_token(path: Path) -> str:
    """A new token, in a file that only its owner reads."""
    token = secrets.token_hex(TOKEN_BYTES)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return token


def read_token(path: Path) -> str:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise PeerRefusedError(f"others can read {path}", hint="chmod 600 the token file")
    token = path.read_text(encoding="ascii").strip()
    if len(token) < TOKEN_BYTES:
        raise PeerRefusedError(f"{path} holds no token", hint=f"write at least {TOKEN_BYTES} characters")
    return token


def token_matches(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _private_listener(path: Path) -> socket.socket:
    """Bound with mode 0600 from its first moment: there is no instant at which others could connect."""
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
