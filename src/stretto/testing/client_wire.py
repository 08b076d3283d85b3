"""A connection in virtual time that carries real frames: split anywhere, delayed, and sometimes lost.

Both ends belong to one `VirtualLoop`. Bytes arrive in order, in pieces; when the wire breaks, bytes in
transit are lost, including partial frames, and each end notices at its own time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from stretto.rpc.connection import Closed, FrameCounters, Receive
from stretto.rpc.envelope import Envelope, Received
from stretto.rpc.frames import FrameDecoder, encode

DELAY_S_MAX = 0.001


class WireEnd:
    """One end. Implements `rpc.connection.Connection`."""

    def __init__(self, wire: SimulatedWire) -> None:
        self.counters = FrameCounters()
        self.peer: WireEnd = self
        self.heard: Callable[[Received], None] = lambda _envelope: None
        self._wire = wire
        self._decoder = FrameDecoder()
        self._receive: Receive | None = None
        self._on_close: Closed | None = None
        self._arrives_s = 0.0
        self._inbox: deque[bytes] = deque()
        self._ended = False

    def open(self, receive: Receive, closed: Closed) -> None:
        self._receive, self._on_close = receive, closed

    def send(self, envelope: Envelope) -> None:
        if not self._ended:
            self.send_bytes(encode(envelope))
            self.counters.frames_sent += 1

    def send_now(self, envelope: Envelope) -> bool:
        return False

    def send_bytes(self, data: bytes) -> None:
        rng, loop = self._wire.rng, asyncio.get_running_loop()
        while data:
            size = len(data) if rng.random() < 0.7 else rng.randint(1, len(data))
            piece, data = data[:size], data[size:]
            moment_s = max(self.peer._arrives_s, loop.time() + rng.random() * DELAY_S_MAX)
            self.peer._arrives_s = moment_s
            self.peer._inbox.append(piece)  # timers of one instant fire in any order, bytes must not
            loop.call_at(moment_s, self.peer._arrive)

    def close(self, error: Exception | None = None) -> None:
        self._wire.cut()

    @property
    def is_closed(self) -> bool:
        return self._ended

    @property
    def unsent_bytes(self) -> int:
        return 0

    def _arrive(self) -> None:
        data = self._inbox.popleft()
        if self._wire.broken:
            return
        for envelope in self._decoder.feed(data):
            if self.is_closed or self._receive is None:
                return
            self.counters.frames_received += 1
            self.heard(envelope)
            self._receive(envelope)

    def lost(self) -> None:
        if self._ended:
            return
        self._ended = True
        closed, self._on_close = self._on_close, None
        if closed is not None:
            closed(None)


class SimulatedWire:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.broken = False
        self.client, self.worker = WireEnd(self), WireEnd(self)
        self.client.peer, self.worker.peer = self.worker, self.client

    def cut(self) -> None:
        if self.broken:
            return
        self.broken = True
        loop = asyncio.get_running_loop()
        for end in (self.client, self.worker):
            loop.call_later(self.rng.random() * 0.01, end.lost)
