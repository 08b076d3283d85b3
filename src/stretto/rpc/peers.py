"""TCP between machines: a listener that is never open to unknown peers, and the way to reach it.

The listener's socket is bound by the process that supervises a worker and inherited by the worker, so that
its port survives the worker's restarts. Every connection passes `rpc.handshake` before its first frame; TLS
is added where a certificate is given. Callers verify it against the cluster's own CA file: addresses of
machines in a cluster change, so the name in the certificate is not compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from stretto.errors import PeerRefusedError, RuntimeUnavailableError, SettingsError
from stretto.rpc.connection import UNSENT_BYTES_MAX, StreamConnection
from stretto.rpc.frames import FRAME_BYTES_MAX
from stretto.rpc.handshake import TIMEOUT_S, Accepting, Proving, Strangers
from stretto.rpc.sockets import TOKEN_BYTES

BACKLOG = 256


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """The secret of a cluster, and its TLS files where links are encrypted."""

    token: str
    tls_cert_file: str | None = None  # the listener's certificate and key
    tls_key_file: str | None = None
    tls_ca_file: str | None = None  # with which callers verify it

    def __post_init__(self) -> None:
        if len(self.token) < TOKEN_BYTES:
            raise SettingsError(
                f"the cluster's token has {len(self.token)} characters",
                hint=f"at least {TOKEN_BYTES}: openssl rand -hex 32",
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise SettingsError("a TLS certificate needs its key", hint="set tls_cert_file and tls_key_file")
        if (self.tls_cert_file is None) != (self.tls_ca_file is None):
            raise SettingsError("TLS needs both ends", hint="set tls_cert_file, tls_key_file and tls_ca_file")

    def listening(self) -> ssl.SSLContext | None:
        if self.tls_cert_file is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        return context

    def calling(self) -> ssl.SSLContext | None:
        if self.tls_ca_file is None:
            return None
        context = ssl.create_default_context(cafile=self.tls_ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        return context


class Peers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's second listener, in its settings: an inherited socket and what its callers must know."""

    fd: int
    token: str
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_ca_file: str | None = None

    @classmethod
    def of(cls, bound: socket.socket, access: PeerAccess) -> Peers:
        return cls(
            bound.fileno(), access.token, access.tls_cert_file, access.tls_key_file, access.tls_ca_file
        )

    def access(self) -> PeerAccess:
        return PeerAccess(self.token, self.tls_cert_file, self.tls_key_file, self.tls_ca_file)


def bind_peers(host: str, port: int = 0, *, token: str | None) -> socket.socket:
    """A bound socket for `serve_peers`, inheritable. Other machines may reach it only with a token."""
    if not token and not is_loopback(host):
        raise SettingsError(
            f"listening on {host} is not allowed without a cluster token",
            hint="set token_file, or use 127.0.0.1",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}", hint="") from None
    bound.set_inheritable(True)
    return bound


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


async def serve_peers(
    bound: socket.socket,
    access: PeerAccess,
    accepted: Callable[[StreamConnection], None],
    *,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    unsent_bytes_max: int = UNSENT_BYTES_MAX,
    strangers: Strangers | None = None,
) -> asyncio.Server:
    """`accepted` gets only connections whose peer has proved that it knows the token."""
    unknown = strangers or Strangers()

    def protocol() -> Accepting:
        connection = StreamConnection(frame_bytes_max=frame_bytes_max, unsent_bytes_max=unsent_bytes_max)
        return Accepting(connection, accepted, access.token, unknown)

    context = access.listening()
    return await asyncio.get_running_loop().create_server(
        protocol,
        sock=bound,
        backlog=BACKLOG,
        ssl=context,
        ssl_handshake_timeout=TIMEOUT_S if context is not None else None,
    )


async def connect_peer(
    host: str, port: int, access: PeerAccess, *, frame_bytes_max: int = FRAME_BYTES_MAX
) -> StreamConnection:
    """Raises RuntimeUnavailableError if nothing answers, PeerRefusedError if it is not of this cluster."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, proving = await asyncio.get_running_loop().create_connection(
                lambda: Proving(StreamConnection(frame_bytes_max=frame_bytes_max), access.token),
                host,
                port,
                ssl=access.calling(),
            )
            return await proving.done
    except ssl.SSLError as error:
        raise PeerRefusedError(
            f"TLS with {host}:{port} failed: {error.reason}", hint="check tls_ca_file"
        ) from None
    except (OSError, TimeoutError) as error:
        raise RuntimeUnavailableError(f"{host}:{port} cannot be reached: {error}") from None
