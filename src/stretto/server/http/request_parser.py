"""Parses HTTP/1.1 requests from a connection's bytes one at a time, within limits.

The underlying parser (httptools) accepts headers of any length and continues into the next request. Here it
gets the bytes of one message only: bytes after a message stay with the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

import httptools

FRAMING_BYTES_MAX = 256 << 10  # chunk sizes, chunk extensions and trailers of one body
_HEAD_END = b"\r\n\r\n"


class BadRequest(Exception):
    """Not HTTP/1.1, or beyond the limits: answered, then the connection is closed."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_http") -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: str
    raw_path: bytes
    path: str
    query: bytes
    http_version: str
    headers: list[tuple[bytes, bytes]]
    keep_alive: bool
    expects_continue: bool


class Owner(Protocol):
    def head_complete(self, head: RequestHead) -> None: ...
    def body_part(self, body: bytes) -> None: ...
    def request_complete(self) -> None: ...


class RequestParser:
    """`feed` for one request, up to `complete`; then `reset` for the next."""

    def __init__(self, owner: Owner, *, head_bytes_max: int) -> None:
        self._owner: Owner | None = owner
        self._head_bytes_max = head_bytes_max
        self._parser: httptools.HttpRequestParser | None = None
        self.complete = False
        self.reset()

    def reset(self) -> None:
        self.head_bytes = 0
        self.in_head = True
        self.complete = False
        self.behind = False  # the parser saw bytes after a chunked request, which are lost
        self._head_tail = b""  # its last three bytes
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body_left: int | None = 0  # bytes; None: chunked
        self._framing_bytes = 0
        self._upgrades = False  # the request offers a protocol upgrade

    def close(self) -> None:
        """Break reference cycles."""
        self._parser = None
        self._owner = None

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes after this request. Raises `BadRequest`."""
        while data and not self.complete and self._owner is not None:
            data = self._feed_head(data) if self.in_head else self._feed_body(data)
        return data

    def _feed_head(self, data: bytes) -> bytes:
        tail = self._head_tail
        end = (tail + data).find(_HEAD_END)
        part = data if end < 0 else data[: end + len(_HEAD_END) - len(tail)]
        self.head_bytes += len(part)
        self._head_tail = (tail + part)[-3:]
        if self.head_bytes > self._head_bytes_max:
            raise BadRequest(
                "the request head is too long; hint: send fewer or shorter headers",
                status=431,
                code="headers_too_large",
            )
        self._parse(part)
        return data[len(part) :]

    def _feed_body(self, data: bytes) -> bytes:
        if self._body_left is None:
            self._framing_bytes += len(data)  # `on_body` subtracts the body bytes
            self._parse(data)
            if self._framing_bytes > FRAMING_BYTES_MAX:
                raise BadRequest("the body has too many chunks, extensions or trailers")
            return b""
        part = data[: self._body_left]
        self._body_left -= len(part)
        if self._upgrades:
            self._pass_on(part)
        else:
            self._parse(part)
        return data[len(part) :]

    def _pass_on(self, body: bytes) -> None:
        """The body of a request with an upgrade, which the parser does not read."""
        self.on_body(body)
        if not self._body_left:
            self._end()

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = None  # upgrades are not supported: the next request needs a new parser
            if self._body_left is None:
                raise BadRequest("an upgrade with a chunked body is not supported") from None
            if not self._body_left:
                self._end()
        except httptools.HttpParserError:
            self._parser = None
            if not self.complete:
                raise BadRequest("this is not a valid HTTP/1.1 request") from None
            self.behind = True

    def _end(self) -> None:
        if not self.complete and self._owner is not None:
            self.complete = True
            self._owner.request_complete()

    # --- callbacks of httptools --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self.in_head:
            raise ValueError("more than one message")

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer
        name = name.lower()
        if name == b"content-length":
            self._body_left = int(value)
        elif name == b"transfer-encoding":
            self._body_left = None
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._owner is not None
        version = self._parser.get_http_version()
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        self._upgrades = self._parser.should_upgrade()
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        head = RequestHead(
            method=self._parser.get_method().decode("ascii"),
            raw_path=url.path,
            path=unquote(path) if "%" in path else path,
            query=url.query or b"",
            http_version=version,
            headers=self._headers,
            keep_alive=version == "1.1" and self._parser.should_keep_alive(),
            expects_continue=expects,
        )
        self.in_head = False
        self._owner.head_complete(head)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        if self._owner is not None:
            self._owner.body_part(body)

    def on_message_complete(self) -> None:
        if not self._upgrades:
            self._end()
