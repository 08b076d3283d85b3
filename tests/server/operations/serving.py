"""A running server on a real socket, in its own thread, with the given worker client and settings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvloop

from stretto.server.http.keys import KeyRing, load_keys
from stretto.server.operations.operations import Operations
from stretto.server.run import Server, _config, bind, url_of
from stretto.settings import ServerSettings
from tests.server.operations.scripted import ScriptedClient


@dataclass
class Running:
    url: str
    worker_client: Any
    operations: Operations
    server: Server
    loop: asyncio.AbstractEventLoop
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, **options: Any) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False, **options)
        self.clients.append(client)
        return client

    def call(self, function: Callable[[], Any]) -> Any:
        """Run something on the server's loop, where its state lives."""

        async def inside() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result(10)


@contextmanager
def served(
    make_client: Callable[[], Any] = ScriptedClient,
    *,
    keys: KeyRing | None = None,
    tracer: Any = None,
    **settings: Any,
) -> Iterator[Running]:
    chosen = ServerSettings(port=0, **settings)
    started: list[Running] = []
    up = threading.Event()

    async def live() -> None:
        worker_client = make_client()
        operations = Operations(worker_client, chosen, keys=keys or load_keys(chosen), tracer=tracer)
        server = Server(_config(operations, chosen), operations)
        bound = bind(chosen.model_copy(update={"host": "127.0.0.1"}))
        started.append(Running(url_of(bound), worker_client, operations, server, asyncio.get_running_loop()))

        async def ready(_: Any) -> None:
            up.set()

        await server.live(bound, ready)
        await worker_client.close()

    thread = threading.Thread(target=lambda: uvloop.run(live()), daemon=True)
    thread.start()
    assert up.wait(20), "the server did not start"
    running = started[0]
    try:
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.loop.call_soon_threadsafe(running.server._leave)
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


CHAT: dict[str, Any] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4,
}
