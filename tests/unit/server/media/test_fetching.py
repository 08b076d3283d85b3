"""Pictures by their address: only where allowed, only from public addresses, with limits."""

from __future__ import annotations

import asyncio
import base64
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stretto.errors import InvalidMediaError
from stretto.server.media.fetching import MediaFetcher, is_public


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/cat.png")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        if self.path == "/slow":
            self.send_header("content-length", "1000000")
            self.end_headers()
            for _ in range(200):
                self.wfile.write(b"x")
                time.sleep(0.05)
            return
        body = b"picture" * (100_000 if self.path == "/large" else 1)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def fetched(url: str, hosts: list[str], *, anywhere: bool = True, timeout_s: float = 5.0) -> bytes:
    async def fetch() -> str:
        allowed = (lambda _: True) if anywhere else None
        return await MediaFetcher(hosts, bytes_max=100_000, timeout_s=timeout_s, allowed=allowed).fetch(url)

    return base64.b64decode(asyncio.run(fetch()))


def test_a_picture_of_an_allowed_host():
    with serving() as port:
        assert fetched(f"http://localhost:{port}/cat.png?size=1", ["LOCALHOST"]) == b"picture"


@pytest.mark.parametrize(
    ("path", "said"),
    [("/large", "more than 100000 bytes"), ("/moved", "answered 302"), ("/slow", "did not")],
)
def test_size_time_and_redirects_are_limited(path, said):
    with serving() as port:
        started_s = time.monotonic()
        with pytest.raises(InvalidMediaError, match=said):
            fetched(f"http://localhost:{port}{path}", ["localhost"], timeout_s=0.5)
        assert time.monotonic() - started_s < 5.0


def test_private_addresses_are_refused_whatever_the_list_says():
    with serving() as port:
        for host in ("localhost", "127.0.0.1"):
            with pytest.raises(InvalidMediaError, match="not public"):
                fetched(f"http://{host}:{port}/cat.png", [host], anywhere=False)


@pytest.mark.parametrize(
    ("url", "hosts", "said"),
    [
        ("https://example.org/cat.png", [], "does not fetch"),
        ("https://example.org/cat.png", ["example.com"], "example.org are not fetched"),
        ("https://badexample.org/cat.png", ["*.example.org"], "not fetched"),
        ("https://example.org@evil.net/cat.png", ["example.org"], "not an address"),
        ("ftp://example.org/cat.png", ["example.org"], "not an address"),
        ("file:///etc/passwd", ["example.org"], "not an address"),
        ("https://example.org:99999999/", ["example.org"], "not an address"),
        ("x" * 5000, ["example.org"], "not an address"),
        ("http://nothing.invalid/x", ["*.invalid"], "did not send"),
    ],
)
def test_what_is_refused(url, hosts, said):
    with pytest.raises(InvalidMediaError, match=said):
        fetched(url, hosts)


def test_public_addresses():
    assert is_public("93.184.215.14")
    assert is_public("2606:2800:21f:cb07:6820:80da:af6b:8b2c")
    for private in (
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "100.64.0.1",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
    ):
        assert not is_public(private), private
