"""HTTP/1.1 on a connection, bounded: uvicorn's protocol with limits on what comes before the application.

The parser itself holds any header, however long, and waits for it forever. Here a request head that is too
long is answered 431, and one that does not arrive in time closes the connection (slowloris).
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)
_BODY = (
    b'{"error":{"message":"the request head is too long; hint: send fewer or shorter headers",'
    b'"type":"invalid_request_error","param":null,"code":"headers_too_large"}}'
)


class BoundedProtocol(HttpToolsProtocol):
    """Made by `bounded`, which sets the two limits on a subclass."""

    head_bytes_max: ClassVar[int] = 64 << 10
    head_timeout_s: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0  # of a head that is not complete yet
        self._in_head = True
        self._heads = 0  # complete ones
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._unset_keepalive_if_required()  # after a reset its timer would hold all of this for a minute
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._patience is None:
            self._wait_for_head()
        before = self._heads, self._in_head
        super().data_received(data)
        if before != (self._heads, True):
            return  # a head came to its end, or these were a body's last bytes
        self._head_bytes += len(data)
        if self._head_bytes > self.head_bytes_max and not self.transport.is_closing():
            self.transport.write(_TOO_LONG % (len(_BODY), _BODY))
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True  # what comes next is the head of another request, if anything
        self._head_bytes = 0

    def _wait_for_head(self) -> None:
        self._patience = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if not self.transport.is_closing():
            self.transport.close()


def bounded(*, head_bytes_max: int, head_timeout_s: float) -> type[BoundedProtocol]:
    limits = {"head_bytes_max": head_bytes_max, "head_timeout_s": head_timeout_s}
    return type("ServerProtocol", (BoundedProtocol,), limits)
