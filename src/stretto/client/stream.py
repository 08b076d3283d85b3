"""The state of one generation on the reader's side, and the counters of all. `client.streams` changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.client.api import Delta
from stretto.rpc.messages import StreamEnd, StreamStart

NOWHERE = -1  # not assigned to a worker process


@dataclass(slots=True, eq=False)
class ClientStream:
    """One generation, on the reader's side."""

    id: str
    tenant: str
    started_s: float
    wake: Callable[[], None]
    epoch: int = NOWHERE  # the worker process that runs it
    heard_s: float = 0.0
    sent_s: float | None = None  # when it was sent; the worker's timings start here
    start: StreamStart | None = None
    first_token_s: float | None = None
    tokens: int = 0
    unread: Delta = field(default_factory=Delta)  # everything except the text, which is joined on read
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    unread_bytes: int = 0
    unread_since_s: float | None = None
    wake_tokens: int = 0  # unread tokens at which the reader is woken; the end always wakes it
    woken: bool = False  # since its last read
    blocked: bool = False  # its credit is used up
    end: StreamEnd | None = None
    number: int = 0  # under which its tokens arrive in columns; 0: as text

    @property
    def delivered(self) -> bool:
        """Some output has arrived, so the request can no longer be replayed."""
        return self.first_token_s is not None

    @property
    def held_s(self) -> float:
        """How long it was queued in the client before it was sent."""
        return 0.0 if self.sent_s is None else self.sent_s - self.started_s

    @property
    def readable(self) -> bool:
        return self.unread_since_s is not None


@dataclass(slots=True)
class StreamMetrics:
    opened: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # by finish reason
    tokens: int = 0
    frames: int = 0
    unknown_frames: int = 0
    stale_frames: int = 0
    blocked: int = 0
    slow_drops: int = 0
    timeouts: int = 0
    refused: int = 0
    unread_bytes_max: int = 0
