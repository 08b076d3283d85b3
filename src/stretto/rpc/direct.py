"""Writes to a connection's socket from any thread, past its event loop.

A frame of one tick is small and the socket nearly always has room: handing it to the event loop costs two
switches between threads. Only Unix sockets: what other transports do to the bytes is theirs to know.
"""

from __future__ import annotations

import asyncio
import os
import socket


class DirectSocket:
    """A descriptor of its own for the same socket: the transport may close its one at any time."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))

    def send(self, data: bytes) -> int:
        """How many bytes were taken: 0 where there is no room, or where the peer is gone."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return 0

    def close(self) -> None:
        self._socket.close()

    __del__ = close  # of a connection that was dropped with its loop


def direct_socket(transport: asyncio.BaseTransport) -> DirectSocket | None:
    found = transport.get_extra_info("socket")
    if found is None or found.family != getattr(socket, "AF_UNIX", None) or found.type != socket.SOCK_STREAM:
        return None
    if transport.get_extra_info("ssl_object") is not None or not hasattr(socket, "MSG_NOSIGNAL"):
        return None
    try:
        return DirectSocket(found.fileno())
    except OSError:
        return None
