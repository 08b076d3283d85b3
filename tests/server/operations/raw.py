"""A raw TCP client: it sends what a test says, byte for byte, and reads what comes back."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from tests.server.operations.serving import CHAT, Running

GET = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


def dial(running: Running, data: bytes = b"", *, receive_bytes: int = 0) -> socket.socket:
    """A connection that has sent `data`. `receive_bytes`: a small buffer, for clients that do not read."""
    host, port = running.url.removeprefix("http://").split(":")
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(10)
    client.connect((host, int(port)))
    if data:
        client.sendall(data)
    return client


def post(path: str, body: Any, *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return ("\r\n".join([*lines, f"content-length: {len(data)}"]) + "\r\n\r\n").encode() + data


def chat(**fields: Any) -> bytes:
    return post("/v1/chat/completions", {**CHAT, **fields})


def head_of(data: bytes) -> dict[str, str]:
    """Header fields of the first reply in it; `:status` is its status."""
    first, *lines = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {":status": first.split(" ")[1], **fields}


def rest(client: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    data = b""
    try:
        while part := client.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data


def seconds_to_close(client: socket.socket) -> float:
    started_s = time.monotonic()
    rest(client)
    return time.monotonic() - started_s


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)
