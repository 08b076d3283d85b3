"""A connection between client and worker, seen from either end: sends envelopes, calls back for received
ones.

Two kinds: over an asyncio transport (Unix or TCP), which encodes, and an in-memory pair, which passes the
objects themselves. All methods but `send_now` belong to the connection's event loop. Nothing here blocks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from stretto.errors import CapacityError, FrameError, TooLargeError
from stretto.rpc.direct import DirectSocket, direct_socket
from stretto.rpc.envelope import Call, Envelope, Received
from stretto.rpc.frames import FRAME_BYTES_MAX, HEADER_BYTES, FrameDecoder, encode

UNSENT_BYTES_MAX = 64 << 20
LARGE_BYTES = 1 << 18  # larger calls are rejected while much is unsent
Receive = Callable[[Received], None]
Closed = Callable[[Exception | None], None]


@dataclass(slots=True)
class FrameCounters:
    """Frames and bytes in each direction. In-memory connections count no bytes."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0


class Connection(Protocol):
    """Contract: nothing is received before `open`; order is preserved; `closed` is called exactly once, with
    the error that ended the connection or None; nothing is received after it; sending when closed has no
    effect.
    """

    counters: FrameCounters

    def open(self, receive: Receive, closed: Closed) -> None: ...

    def send(self, envelope: Envelope) -> None:
        """Raises TooLargeError if the envelope does not fit a frame, CapacityError for a large call while
        much is unsent, and encoding errors. In these cases nothing is sent and the connection stays usable.
        """

    def send_now(self, envelope: Envelope) -> bool:
        """From any thread: False if it cannot be sent at once, behind all that was sent; nothing happened."""

    def close(self, error: Exception | None = None) -> None:
        """Send what is queued, then close. With an error: close immediately."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued but not yet sent."""


class StreamConnection(asyncio.Protocol):
    """Over a transport. Closed if more than `unsent_bytes_max` bytes are unsent."""

    def __init__(
        self, *, frame_bytes_max: int = FRAME_BYTES_MAX, unsent_bytes_max: int = UNSENT_BYTES_MAX
    ) -> None:
        self.counters = FrameCounters()
        self.transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(frame_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        self._early = bytearray()
        self._unsent_bytes_max = unsent_bytes_max
        self._receive: Receive | None = None
        self._on_close: Closed | None = None
        self._error: Exception | None = None
        self._ended = False
        self._closing = False
        self._direct: DirectSocket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._order = threading.Lock()  # of what is written
        self._rest = b""  # of a frame that had no room, and what came after it

    def open(self, receive: Receive, closed: Closed) -> None:
        self._receive, self._on_close = receive, closed
        if self._ended:
            asyncio.get_running_loop().call_soon(self._tell_closed)
        else:
            asyncio.get_running_loop().call_soon(self._feed, b"")

    def send(self, envelope: Envelope) -> None:
        if self._closing or self.transport is None:
            return
        frame = encode(envelope)
        if len(frame) - HEADER_BYTES > self._frame_bytes_max:  # the peer would close the connection
            raise TooLargeError(
                f"a message of {len(frame)} bytes; at most {self._frame_bytes_max} fit one frame",
                hint="ask for less at once, or raise runtime.frame_bytes_max",
            )
        if isinstance(envelope, Call) and len(frame) > LARGE_BYTES:
            waiting = self.unsent_bytes
            if waiting and waiting + len(frame) > self._unsent_bytes_max // 2:  # the rest is for small calls
                raise CapacityError(f"{waiting} bytes of other requests are still being sent to the worker")
        with self._order:
            self._count(frame)
            if self._rest:
                self._rest += frame
            else:
                self.transport.write(frame)
        if self.unsent_bytes > self._unsent_bytes_max:
            self.close(FrameError(f"the peer does not read: {self.unsent_bytes} bytes are unsent"))

    def send_now(self, envelope: Envelope) -> bool:
        direct = self._direct
        if direct is None:
            return False
        frame = encode(envelope)
        if len(frame) - HEADER_BYTES > self._frame_bytes_max:
            return False
        with self._order:
            if self._closing or self.unsent_bytes:  # a connection that was lost is closing, too
                return False
            sent = direct.send(frame)
            if not sent:
                return False
            self._count(frame)
            if sent < len(frame):
                self._rest = frame[sent:]
        if sent < len(frame) and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there is no reader
                self._loop.call_soon_threadsafe(self._write_rest)
        return True

    def _count(self, frame: bytes) -> None:
        self.counters.frames_sent += 1
        self.counters.bytes_sent += len(frame)

    def _write_rest(self) -> None:
        with self._order:
            rest, self._rest = self._rest, b""
            if rest and self.transport is not None and not self._ended:
                self.transport.write(rest)

    def close(self, error: Exception | None = None) -> None:
        if self._closing:
            return
        if error is None:
            self._write_rest()
        self._closing, self._error = True, error
        if self.transport is not None:
            self.transport.close() if error is None else self.transport.abort()

    @property
    def is_closed(self) -> bool:
        return self._closing or self._ended

    @property
    def unsent_bytes(self) -> int:
        if self.transport is None or self._ended:
            return 0
        return len(self._rest) + self.transport.get_write_buffer_size()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        self._loop = asyncio.get_running_loop()
        self._direct = direct_socket(transport)

    def data_received(self, data: bytes) -> None:
        self.counters.bytes_received += len(data)
        if self._receive is not None:
            self._feed(data)
            return
        self._early += data
        if len(self._early) > self._frame_bytes_max:
            self.close(FrameError("too much data arrived before the connection was opened"))

    def _feed(self, data: bytes) -> None:
        if self._early:
            data, self._early = bytes(self._early) + data, bytearray()
        try:
            received = self._decoder.feed(data) if not self._closing else []
        except FrameError as error:
            self.close(error)
            return
        for envelope in received:
            if self._closing or self._receive is None:
                return
            self.counters.frames_received += 1
            self._receive(envelope)

    def connection_lost(self, error: Exception | None) -> None:
        with self._order:
            self._ended = self._closing = True
            direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        self._error = self._error or error
        self._tell_closed()

    def _tell_closed(self) -> None:
        closed, self._on_close, self._receive = self._on_close, None, None
        if closed is not None:
            closed(self._error)


class MemoryConnection:
    """One end of a pair. Objects arrive in a later turn of the loop, as they would over a socket."""

    def __init__(self) -> None:
        self.counters = FrameCounters()
        self._peer: MemoryConnection | None = None
        self._receive: Receive | None = None
        self._on_close: Closed | None = None
        self._early: list[Received] = []
        self._ended = False
        self._error: Exception | None = None

    def open(self, receive: Receive, closed: Closed) -> None:
        self._receive, self._on_close = receive, closed
        early, self._early = self._early, []
        for envelope in early:
            asyncio.get_running_loop().call_soon(self._arrive, envelope)
        if self._ended:
            asyncio.get_running_loop().call_soon(self._tell_closed)

    def send(self, envelope: Envelope) -> None:
        if self._ended or self._peer is None:
            return
        self.counters.frames_sent += 1
        asyncio.get_running_loop().call_soon(self._peer._arrive, envelope)

    def send_now(self, envelope: Envelope) -> bool:
        return False

    def close(self, error: Exception | None = None) -> None:
        if self._ended:
            return
        self._ended, self._error = True, error
        loop = asyncio.get_running_loop()
        loop.call_soon(self._tell_closed)
        if self._peer is not None:
            loop.call_soon(self._peer._lost)

    @property
    def is_closed(self) -> bool:
        return self._ended

    @property
    def unsent_bytes(self) -> int:
        return 0

    def _arrive(self, envelope: Received) -> None:
        if self._ended:
            return
        if self._receive is None:
            self._early.append(envelope)
            return
        self.counters.frames_received += 1
        self._receive(envelope)

    def _lost(self) -> None:
        if not self._ended:
            self._ended = True
            self._tell_closed()

    def _tell_closed(self) -> None:
        closed, self._on_close, self._receive = self._on_close, None, None
        if closed is not None:
            closed(self._error)


def memory_pair() -> tuple[MemoryConnection, MemoryConnection]:
    first, second = MemoryConnection(), MemoryConnection()
    first._peer, second._peer = second, first
    return first, second
