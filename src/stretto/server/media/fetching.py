"""Pictures by their address, for servers whose operator allows it (`server.media_hosts`).

A request could otherwise make the server call other machines of its network. So a host must be on the list;
its name is resolved here and the connection goes to that very address, which must be a public one; redirects
are not followed; and size and time are limited. Without a list nothing is fetched.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from urllib.parse import SplitResult, urlsplit

from stretto.errors import InvalidMediaError

URL_CHARS_MAX = 4096
CHUNK_BYTES = 1 << 16
AT_ONCE_MAX = 8


class MediaFetcher:
    """`allowed`: whether an address may be connected to; by default public ones."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        bytes_max: int,
        timeout_s: float,
        allowed: Callable[[str], bool] | None = None,
    ) -> None:
        self._hosts = tuple(host.lower() for host in hosts)
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._allowed = allowed or is_public
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)

    async def fetch(self, url: str) -> str:
        """The base64 of what is at an address. Raises InvalidMediaError."""
        parts = self._checked(url)
        async with self._at_once:
            try:
                data = await asyncio.to_thread(self._get, parts)
            except (OSError, http.client.HTTPException) as error:
                raise InvalidMediaError(f"{parts.hostname} did not send the picture") from error
        return base64.b64encode(data).decode()

    def _checked(self, url: str) -> SplitResult:
        if not self._hosts:
            raise InvalidMediaError(
                "this server does not fetch pictures by their address",
                hint="send a data URL: data:image/png;base64,…",
            )
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if len(url) > URL_CHARS_MAX or not host or parts.scheme not in ("http", "https") or parts.username:
            raise InvalidMediaError("not an address of a picture", hint="send an https URL or a data URL")
        if not any(_matches(host.lower(), pattern) for pattern in self._hosts):
            raise InvalidMediaError(f"pictures of {host[:80]} are not fetched here", hint="send a data URL")
        return parts

    def _get(self, parts: SplitResult) -> bytes:
        ends_s = time.monotonic() + self._timeout_s
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        connection.sock = self._connected(parts.scheme, host, port)
        with contextlib.closing(connection):
            connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "stretto"})
            with connection.getresponse() as reply:
                if reply.status != 200:
                    raise InvalidMediaError(
                        f"{host} answered {reply.status}, not 200", hint="redirects are not followed"
                    )
                return self._read(reply, connection, ends_s)

    def _connected(self, scheme: str, host: str, port: int) -> socket.socket:
        plain = socket.create_connection((self._resolved(host, port), port), timeout=self._timeout_s)
        if scheme == "http":
            return plain
        try:
            return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def _resolved(self, host: str, port: int) -> str:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(map(self._allowed, addresses)):
            raise InvalidMediaError(f"{host} has an address that is not public")
        return addresses[0]

    def _read(
        self, reply: http.client.HTTPResponse, connection: http.client.HTTPConnection, ends_s: float
    ) -> bytes:
        data = bytearray()
        while True:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise InvalidMediaError("the picture did not arrive in time")
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
            part = reply.read1(CHUNK_BYTES)
            if not part:
                return bytes(data)
            data += part
            if len(data) > self._bytes_max:
                raise InvalidMediaError(f"the picture has more than {self._bytes_max} bytes")


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def is_public(address: str) -> bool:
    """Neither of this machine nor of its network, nor of any other purpose than the Internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    if mapped is not None:
        return is_public(str(mapped))
    return found.is_global and not found.is_multicast
