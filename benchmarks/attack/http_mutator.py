"""Mutated HTTP requests: valid ones of every route, damaged in head, framing, body or JSON.

Seeded, so that a run can be repeated. `whole`: the request claims to be complete, so it must be answered; for
a truncated one only the end of its connection is expected.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MESSAGES = [{"role": "user", "content": "hello"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "hello"},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/tokenize": {"content": "hello"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
GETS = ("/livez", "/readyz", "/health", "/metrics", "/slots", "/v1/models", "/version", "/openapi.json", "/")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "BREW", "")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 1e308, -0.0, "", "x", "\x00", "\ud7ff", "😀" * 40),
    *([], {}, [[]], [{}], [None] * 20, {"type": "x"}, [1, "a", None], {"a": {"b": {"c": []}}}, "a" * 3000),
)
FIELDS = (
    *("temperature", "top_p", "stop", "n", "seed", "logit_bias", "tools", "tool_choice", "response_format"),
    *(
        "stream",
        "stream_options",
        "model",
        "messages",
        "max_tokens",
        "prompt",
        "input",
        "priority",
        "unknown",
    ),
    *(
        "guided_json",
        "grammar",
        "logprobs",
        "echo",
        "suffix",
        "system",
        "deadline_ms",
        "cache_salt",
        "prompt",
    ),
)
HEADERS = (
    *(
        "content-length: -1",
        "content-length: 99999999999999999999",
        "transfer-encoding: gzip",
        "te: trailers",
    ),
    *("expect: 100-continue", "connection: upgrade", "upgrade: websocket", "connection: close, keep-alive"),
    *("host: evil.example", "origin: http://evil.example", "authorization: Bearer x", "x: " + "y" * 9000),
    *("content-type: text/plain", "content-type: application/json; charset=latin-1", "content-encoding: br"),
    *(
        "content-encoding: gzip",
        "\tfolded",
        "no colon",
        ": no name",
        "a b: c",
        "x\x00y: z",
        "accept: \xff\xfe",
    ),
    *("x-request-id: \x7f", "traceparent: 00-0-0-0", "cookie: " + "a=b; " * 500, "range: bytes=0-1"),
)


@dataclass(frozen=True, slots=True)
class MutatedRequest:
    data: bytes
    whole: bool


class Mutator:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def request(self) -> MutatedRequest:
        kinds: tuple[Callable[[], MutatedRequest], ...] = (
            *(self._json, self._json, self._json, self._fields, self._body, self._head, self._bytes),
            *(self._chunked, self._pipelined, self._get, self._truncated, self._compressed, self._lines),
        )
        return self._chance.choice(kinds)()

    # --- kinds -----------------------------------------------------------------------------------

    def _json(self) -> MutatedRequest:
        """Replaces one value in a valid body."""
        path, body = self._good()
        place: Any = body
        while True:
            key = self._chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and self._chance.random() < 0.6:
                place = inner
                continue
            place[key] = self._chance.choice(VALUES)
            return MutatedRequest(self._post(path, body), whole=True)

    def _fields(self) -> MutatedRequest:
        path, body = self._good()
        for _ in range(self._chance.randint(1, 4)):
            body[self._chance.choice(FIELDS)] = self._chance.choice(VALUES)
        return MutatedRequest(self._post(path, body), whole=True)

    def _body(self) -> MutatedRequest:
        """Changes bytes of a valid body; its length stays right."""
        path, body = self._good()
        return MutatedRequest(self._post(path, self._spoiled(json.dumps(body).encode())), whole=True)

    def _head(self) -> MutatedRequest:
        path, body = self._good()
        lines = [self._chance.choice(HEADERS) for _ in range(self._chance.randint(1, 3))]
        return MutatedRequest(self._post(path, body, *lines), whole=False)

    def _bytes(self) -> MutatedRequest:
        """Changes any byte of a request: lengths may be wrong."""
        path, body = self._good()
        return MutatedRequest(self._spoiled(self._post(path, body)), whole=False)

    def _chunked(self) -> MutatedRequest:
        path, body = self._good()
        data, parts = json.dumps(body).encode(), []
        while data:
            size = self._chance.randint(1, 40)
            extension = self._chance.choice(("", "", ";x=y", ";" + "z" * 100))
            parts.append(f"{len(data[:size]):x}{extension}\r\n".encode() + data[:size] + b"\r\n")
            data = data[size:]
        parts.append(
            self._chance.choice((b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"0\r\n" + b"t: u\r\n" * 50 + b"\r\n"))
        )
        head = self._lines_of("POST", path, "content-type: application/json", "transfer-encoding: chunked")
        whole = head + b"".join(parts)
        if self._chance.random() < 0.5:
            return MutatedRequest(whole, whole=True)
        return MutatedRequest(head + self._spoiled(b"".join(parts)), whole=False)

    def _pipelined(self) -> MutatedRequest:
        count = self._chance.randint(2, 400)
        return MutatedRequest(self._get().data * count, whole=True)

    def _get(self) -> MutatedRequest:
        return MutatedRequest(self._lines_of("GET", self._chance.choice(GETS)), whole=True)

    def _truncated(self) -> MutatedRequest:
        path, body = self._good()
        data = self._post(path, body)
        return MutatedRequest(data[: self._chance.randrange(len(data))], whole=False)

    def _compressed(self) -> MutatedRequest:
        path, body = self._good()
        data = gzip.compress(json.dumps(body).encode())
        if self._chance.random() < 0.5:
            data = self._spoiled(data)
        return MutatedRequest(self._post(path, data, "content-encoding: gzip"), whole=True)

    def _lines(self) -> MutatedRequest:
        """An invalid request line and headers."""
        alphabet = "GET POST/ HTTP1.\r\n:\t\x00\xff%?#[]{}aZ9 "
        noise = "".join(self._chance.choices(alphabet, k=self._chance.randint(0, 60)))
        method, target = (
            self._chance.choice(METHODS),
            self._chance.choice((*GETS, *ROUTES, "*", "http://x/", noise)),
        )
        version = self._chance.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTTP/1.1 ", "", noise))
        data = f"{method} {target} {version}\r\nhost: localhost\r\n{noise}\r\n\r\n"
        return MutatedRequest(data.encode("latin-1"), whole=False)

    # --- parts -----------------------------------------------------------------------------------

    def _good(self) -> tuple[str, dict[str, Any]]:
        path = self._chance.choice(list(ROUTES))
        return path, json.loads(json.dumps(ROUTES[path]))

    def _spoiled(self, data: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(self._chance.randint(1, 6)):
            place = self._chance.randrange(len(found) + 1)
            action = self._chance.randrange(4)
            if action == 0:
                found[place:place] = self._chance.randbytes(self._chance.randint(1, 8))
            elif action == 1:
                del found[place : place + self._chance.randint(1, 8)]
            elif action == 2 and place < len(found):
                found[place] = self._chance.randrange(256)
            else:
                found[place:place] = self._chance.choice((b"[" * 200, b'"', b"\\", b"\r\n", b"{", b"9" * 400))
        return bytes(found)

    def _post(self, path: str, body: Any, *lines: str) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = any(line.startswith("content-type") for line in lines)
        kind = () if named else ("content-type: application/json",)
        return self._lines_of("POST", path, *kind, *lines, f"content-length: {len(data)}") + data

    def _lines_of(self, method: str, path: str, *lines: str) -> bytes:
        return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode("latin-1")
