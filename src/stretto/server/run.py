"""From settings to a server that listens, and from a signal to its end.

Owns the socket, the signals and the order of start and stop: bind, engine up, serve; at the first SIGTERM or
SIGINT drain, at the second cut, then close the engine and leave with 0. Knows nothing of models: the caller
brings the engine and what to do once it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from stretto.client.api import EngineApi
from stretto.errors import SettingsError
from stretto.rpc import gc_policy
from stretto.server.app import create_app
from stretto.server.http.connection import ConnectionLimits, connections
from stretto.server.http.crowd import Crowd
from stretto.server.http.descriptors import connections_possible
from stretto.server.http.keys import KeyRing, load_keys
from stretto.server.operations.operations import Operations
from stretto.settings import ServerSettings
from stretto.telemetry.logs import logger
from stretto.telemetry.traces import make_tracer

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_S = 2  # for connections, once everything that ran is over
BACKLOG = 2048
UNSENT_BYTES_MAX = 16 << 10
_log = logger("stretto.server")


@dataclass(frozen=True, slots=True)
class Listening:
    """What `started` is told: where the server is, and its engine."""

    url: str
    engine: EngineApi


Started = Callable[[Listening], Awaitable[None]]


def check(settings: ServerSettings) -> KeyRing:
    """The keys; refuses to be reachable by others without one."""
    keys = load_keys(settings)
    if not keys and not settings.loopback:
        raise SettingsError(
            f"listening on {settings.host} lets others in, and there is no API key",
            hint="set STRETTO_API_KEY or api_key_file, or keep host: 127.0.0.1",
        )
    if not keys and "*" in settings.cors_origins:
        raise SettingsError(
            'cors_origins: "*" lets every web page in, and there is no API key',
            hint="name the origins, or set STRETTO_API_KEY",
        )
    return keys


def bind(settings: ServerSettings) -> socket.socket:
    """The listening socket. That the port is taken is an error before anything heavy starts."""
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
        _bound_unsent(bound)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"cannot listen on {host}:{settings.port}: {error.strerror}",
            hint="another program may be there; --port N chooses another port, --port 0 a free one",
        ) from None
    return bound


def _bound_unsent(bound: socket.socket) -> None:
    """Bytes that the kernel holds for a client that does not read; accepted sockets inherit it.

    The kernel would take megabytes of a stream, and the server would not see that it is not read.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        bound.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a name for "any", not a bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(engine: EngineApi, settings: ServerSettings, *, started: Started | None = None) -> None:
    """Until a signal, and what runs is over. Raises what kept it from starting."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve_async(engine, settings, started=started))


async def serve_async(engine: EngineApi, settings: ServerSettings, *, started: Started | None = None) -> None:
    keys = check(settings)
    bound = bind(settings)
    tracer = make_tracer(settings.traces)
    operations = Operations(engine, settings, keys=keys, tracer=tracer)
    server = Server(_config(operations, settings), operations)
    with server.signals():
        try:
            await server.live(bound, started)
        finally:
            bound.close()
            await engine.close()
            tracer.close()


class Server(uvicorn.Server):
    """uvicorn's server, stopped by a drain."""

    def __init__(self, config: uvicorn.Config, operations: Operations) -> None:
        super().__init__(config)
        self._operations = operations
        self._stopping: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def live(self, bound: socket.socket, started: Started | None) -> None:
        """Serve at once, so that probes are answered while models load; end with the signal or a failure."""
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
        engine = self._operations.engine
        await engine.start()
        if started is not None:
            await started(Listening(url_of(bound), engine))
        gc_policy.settle()

    # --- stopping --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle both up to the end of the block, then leave them to what handled them before."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self.signalled)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def signalled(self) -> None:
        """The first signal drains, every further one cuts."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        else:
            self._operations.drain.cut()

    async def _stop(self) -> None:
        try:
            if not await self._operations.drain.run():
                await self._operations.engine.close()  # whoever still waits for a token learns it now
        except Exception as error:
            _log.error("the drain broke", exc_info=error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self.should_exit = True
        self._wake.set()

    async def main_loop(self) -> None:
        """As uvicorn's, but it wakes once a second (for the Date header), not ten times."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 1.0)


def _config(operations: Operations, settings: ServerSettings) -> uvicorn.Config:
    app = create_app(operations.engine.inner, settings, operations=operations)
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
    except ImportError:  # not for Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop
