"""A real server on the loopback address, in a thread of its own, with our HTTP connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from stretto.server.http.connection import ConnectionLimits, connections
from stretto.server.http.crowd import Crowd

LIMITS = ConnectionLimits(
    head_bytes_max=40 << 10,
    body_bytes_max=16 << 20,
    head_timeout_s=30.0,
    keep_alive_s=75.0,
    write_timeout_s=30.0,
)


@contextmanager
def serving(app: Any, *, timeout_s: float = 20.0) -> Iterator[str]:
    """The server's address while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=connections(Crowd(4096), LIMITS),
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=2,
        ws="none",
        loop="asyncio",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout_s
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started, "the server did not start"
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout_s)
        listener.close()
