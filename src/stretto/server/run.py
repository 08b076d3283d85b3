"""Runs the server: binds, serves, and shuts down on signals.

Owns the socket, the signals and the order of start and stop: bind, start the worker, serve; the first SIGTERM
or SIGINT drains, the second cancels running requests; then the worker client is closed and the exit status is
0. Knows nothing about models: the caller passes the client and a callback for when it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from stretto.client.api import WorkerClient
from stretto.errors import SettingsError
from stretto.rpc import gc_policy
from stretto.server.app import create_app
from stretto.server.http.concurrency import KeyCounts
from stretto.server.http.connection import ConnectionLimits, connections
from stretto.server.http.crowd import Crowd
from stretto.server.http.descriptors import connections_possible
from stretto.server.http.keys import KeyRing, load_keys
from stretto.server.operations.operations import Operations
from stretto.server.operations.siblings import Siblings
from stretto.settings import ServerSettings
from stretto.telemetry.logs import logger
from stretto.telemetry.traces import Tracer, make_tracer

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_S = 2  # for connections, after all requests have ended
BACKLOG = 2048
UNSENT_BYTES_MAX = 16 << 10
_log = logger("stretto.server")


@dataclass(frozen=True, slots=True)
class Listening:
    """Passed to `started`: the server's URL and its worker client."""

    url: str
    worker_client: WorkerClient


Started = Callable[[Listening], Awaitable[None]]


def check(settings: ServerSettings) -> KeyRing:
    """The keys; raises if the server would be reachable from other machines without one."""
    keys = load_keys(settings)
    if not keys and not settings.loopback:
        raise SettingsError(
            f"listening on {settings.host} is not allowed without an API key",
            hint="set STRETTO_API_KEY or api_key_file, or keep host: 127.0.0.1",
        )
    if not keys and "*" in settings.cors_origins:
        raise SettingsError(
            'cors_origins: "*" is not allowed without an API key',
            hint="name the origins, or set STRETTO_API_KEY",
        )
    return keys


def bind(settings: ServerSettings, *, shared: bool = False, listen: bool = True) -> socket.socket:
    """The listening socket. Binding first reports a port in use before a model is loaded.

    `shared`: several processes listen on the same port, and the kernel spreads connections over them.
    `listen` False: the socket gets no connections until `Server.live` listens.
    """
    host = settings.host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host}: {error.strerror}", hint="check host") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bound_unsent(bound)
        bound.bind(address)
        if listen:
            bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"cannot listen on {host}:{settings.port}: {error.strerror}",
            hint="another program may use it; --port N selects another port, --port 0 a free one",
        ) from None
    return bound


def _bound_unsent(bound: socket.socket) -> None:
    """Limit the kernel's send buffer; accepted sockets inherit it.

    By default the kernel buffers megabytes of a stream, and the server would not notice a client that does
    not read.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        bound.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a name for "any", not a bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(worker_client: WorkerClient, settings: ServerSettings, *, started: Started | None = None) -> None:
    """Serve until a signal and the end of all requests. Raises errors at start."""
    run_loop(serve_async(worker_client, settings, started=started))


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


async def serve_async(
    worker_client: WorkerClient,
    settings: ServerSettings,
    *,
    started: Started | None = None,
    bound: socket.socket | None = None,
    running: KeyCounts | None = None,
    siblings: Siblings | None = None,
) -> None:
    """`bound`, `running` and `siblings`: what several API processes share (`server.api_process`)."""
    keys = check(settings)
    bound = bound or bind(settings)
    tracer = make_tracer(settings.traces)
    operations = Operations(
        worker_client, settings, keys=keys, tracer=tracer, running=running, siblings=siblings
    )
    server = Server(_config(operations, settings), operations)
    with server.signals():
        try:
            if siblings is not None:
                await siblings.start(operations.worker_client)
            await server.live(bound, started)
        finally:
            bound.close()
            await worker_client.close()
            tracer.close()
            if siblings is not None:
                await siblings.close()


def make_server(
    worker_client: WorkerClient,
    settings: ServerSettings,
    *,
    keys: KeyRing,
    tracer: Tracer | None = None,
    running: KeyCounts | None = None,
) -> Server:
    """A server that does not serve yet: call `live`, and `stop` to end it without a signal."""
    operations = Operations(worker_client, settings, keys=keys, tracer=tracer, running=running)
    return Server(_config(operations, settings), operations)


class Server(uvicorn.Server):
    """uvicorn's server with a graceful drain."""

    def __init__(self, config: uvicorn.Config, operations: Operations) -> None:
        super().__init__(config)
        self._operations = operations
        self._stopping: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def live(self, bound: socket.socket, started: Started | None) -> None:
        """Serve immediately, so that probes work while models load; end on a signal or a failure."""
        starting = asyncio.create_task(self._start(bound, started))
        self._serving = asyncio.create_task(self._serve(sockets=[bound]))
        try:
            done, _ = await asyncio.wait({starting, self._serving}, return_when=asyncio.FIRST_COMPLETED)
            if starting in done and starting.exception() is not None:
                self._leave()
            await self._serving
        finally:
            starting.cancel()
            (failure,) = await asyncio.gather(starting, return_exceptions=True)
            if isinstance(failure, Exception) and self._stopping is None:
                raise failure

    async def _start(self, bound: socket.socket, started: Started | None) -> None:
        worker_client = self._operations.worker_client
        await worker_client.start()
        if started is not None:
            await started(Listening(url_of(bound), worker_client))
        gc_policy.settle()

    # --- stopping --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle both signals within the block, then restore the previous handlers."""
        loop = asyncio.get_running_loop()
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.getsignal(number) for number in handled}
        for number in handled:
            loop.add_signal_handler(number, self.signalled)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def signalled(self) -> None:
        """The first signal drains, further ones cancel running requests."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        else:
            self._operations.drain.cut()

    async def stop(self) -> None:
        """Drain, then end `live`."""
        self.signalled()
        assert self._stopping is not None
        await self._stopping
        if self._serving is not None:
            await asyncio.wait({self._serving})

    async def _stop(self) -> None:
        try:
            if not await self._operations.drain.run():
                await self._operations.worker_client.close()  # ends all streams that are still open
        except Exception as error:
            _log.error("the drain failed", exc_info=error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self.should_exit = True
        self._wake.set()

    async def main_loop(self) -> None:
        """Like uvicorn's, but wakes once a second (for the Date header) instead of ten times."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 1.0)


def _config(operations: Operations, settings: ServerSettings) -> uvicorn.Config:
    app = create_app(operations.worker_client.inner, settings, operations=operations)
    limits = ConnectionLimits(
        head_bytes_max=settings.header_bytes_max + settings.url_bytes_max,
        body_bytes_max=settings.body_bytes_max,
        head_timeout_s=settings.read_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        write_timeout_s=settings.write_timeout_s,
    )
    return uvicorn.Config(
        app,
        http=connections(Crowd(connections_possible(settings.connections_max)), limits),
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def _loop_factory() -> Callable[[], Any]:
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop
