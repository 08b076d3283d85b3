"""Hosts provide the client with a connected worker: a supervised process, or an existing connection.

`SupervisedHost` carries out the decisions of `client.supervisor` on processes from a launcher, real or
simulated. It does not interpret what is sent over the connection; that is the listener's (the client's) job.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.client.supervisor import Action, Supervisor, WorkerState
from stretto.errors import RuntimeUnavailableError, StrettoError
from stretto.rpc.connection import Connection
from stretto.rpc.heartbeat import Heartbeat
from stretto.settings import EngineSettings

POLL_S = 0.05
_SIGNALS = {Action.DUMP: signal.SIGUSR1, Action.ABORT: signal.SIGABRT, Action.KILL: signal.SIGKILL}
log = logging.getLogger("stretto.engine.worker")  # the standard library's: programs with the SDK see it


class Listener(Protocol):
    async def worker_up(self, connection: Connection, epoch: int) -> None:
        """Perform the handshake. Raises if the worker cannot be used."""

    def worker_lost(self) -> None: ...

    def worker_failed(self, error: StrettoError) -> None:
        """Do not wait: no worker will be up soon. If one starts later, `worker_up` is called."""


class Host(Protocol):
    """Contract: `worker_up` for every worker process, `worker_lost` after each unrequested exit."""

    async def start(self, listener: Listener) -> None:
        """Returns when the first worker is up; raises if none starts."""

    async def stop(self) -> None:
        """Stop the worker, with SIGTERM first. Leaves no process, socket or file behind."""

    def connection_lost(self) -> None:
        """The listener's connection broke."""

    @property
    def state(self) -> WorkerState: ...

    def stats(self) -> dict[str, object]: ...


class GivenHost:
    """An existing connection to a worker that is supervised elsewhere."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._listener: Listener | None = None
        self._state = WorkerState.DOWN

    @property
    def state(self) -> WorkerState:
        return self._state

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        await listener.worker_up(self._connection, 0)
        self._state = WorkerState.UP

    async def stop(self) -> None:
        self._state = WorkerState.DOWN

    def connection_lost(self) -> None:
        if self._listener is not None and self._state is WorkerState.UP:
            self._state = WorkerState.FAILED
            self._listener.worker_lost()
            self._listener.worker_failed(RuntimeUnavailableError("the worker closed the connection"))

    def stats(self) -> dict[str, object]:
        return {"state": self._state.value}


class Child(Protocol):
    """One worker process."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Its exit status, once it has exited and been reaped."""

    def signal(self, number: int) -> None: ...

    async def connect(self) -> Connection:
        """Connect as soon as the worker listens."""

    def heartbeat(self) -> Heartbeat | None: ...

    def clean_up(self) -> None:
        """After exit: remove its socket and its heartbeat file."""


class Launcher(Protocol):
    async def launch(self, epoch: int) -> Child: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Life:
    epoch: int
    child: Child
    bring_up: asyncio.Task[None] | None = None
    reaper: asyncio.Task[None] | None = None


class SupervisedHost:
    def __init__(
        self, launcher: Launcher, settings: EngineSettings, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._launcher = launcher
        self._settings = settings
        self._supervisor = Supervisor(settings, jitter=jitter)
        self._listener: Listener | None = None
        self._life: _Life | None = None
        self._epoch = 0
        self._first_up: asyncio.Future[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._spawner: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def state(self) -> WorkerState:
        return self._supervisor.state

    @property
    def pid(self) -> int | None:
        return None if self._life is None else self._life.child.pid

    def stats(self) -> dict[str, object]:
        deaths = self._supervisor.deaths
        return {
            "state": self.state.value,
            "pid": self.pid,
            "restarts": deaths.restarts,
            "deaths_in_a_row": deaths.in_a_row,
            "hangs": deaths.hangs,
            "last_reason": deaths.last_reason,
            "hang": self._supervisor.hang,
        }

    # --- start and stop --------------------------------------------------------------------------

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._first_up = self._loop.create_future()
        self._act(self._supervisor.start(self._loop.time()))
        self._poller = self._loop.create_task(self._poll())
        try:
            await self._first_up
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        if self._poller is None:
            return
        if self._spawner is not None:
            await self._spawner
        self._act(self._supervisor.stop(self._loop.time()))
        self._signal(signal.SIGTERM)
        while self._supervisor.state is WorkerState.ENDING:
            self._changed.clear()
            await self._changed.wait()
        self._poller.cancel()
        reaper = [] if self._life is None or self._life.reaper is None else [self._life.reaper]
        await asyncio.gather(self._poller, *reaper, return_exceptions=True)
        self._launcher.close()

    def connection_lost(self) -> None:
        self._act(self._supervisor.connection_lost(self._loop.time()))

    # --- supervision -----------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            self._act(self._supervisor.poll(self._loop.time(), self._hang))

    def _pause_s(self) -> float:
        moment_s = self._supervisor.restart_at_s
        return POLL_S if moment_s is None else min(POLL_S, max(0.0, moment_s - self._loop.time()))

    def _hang(self, seconds: float) -> str:
        beat = None if self._life is None else self._life.child.heartbeat()
        return "" if beat is None else beat.hung(self._loop.time(), step_s_max=seconds, rpc_s_max=seconds)

    def _act(self, actions: Sequence[Action]) -> None:
        assert self._listener is not None
        for action in actions:
            if action is Action.SPAWN:
                self._spawner = self._loop.create_task(self._spawn())
            elif action is Action.LOST:
                self._listener.worker_lost()
            elif action is Action.GIVE_UP:
                self._give_up(self._listener)
            else:
                log.warning("sending a signal to the worker: %s (%s)", action.value, self._why())
                self._signal(_SIGNALS[action])
        self._changed.set()

    def _why(self) -> str:
        return self._supervisor.hang or self._supervisor.deaths.last_reason

    def _signal(self, number: int) -> None:
        if self._life is not None:
            self._life.child.signal(number)

    def _give_up(self, listener: Listener) -> None:
        deaths = self._supervisor.deaths
        error = RuntimeUnavailableError(
            f"the worker died {deaths.in_a_row} times in a row, last: {deaths.last_reason}",
            hint="its output says why; restarts continue at intervals",
        )
        next_try_s = self._settings.restart_backoff_max_s
        log.critical("the worker is in a crash loop: %s; next try in %g s", error.message, next_try_s)
        if self._first_up is not None and not self._first_up.done():
            self._first_up.set_exception(error)
        listener.worker_failed(error)

    # --- one process -----------------------------------------------------------------------------

    async def _spawn(self) -> None:
        epoch, self._epoch = self._epoch, self._epoch + 1
        try:
            child = await self._launcher.launch(epoch)
        except OSError as error:
            self._act(self._supervisor.exited(self._loop.time(), f"it could not be started: {error}"))
            return
        life = self._life = _Life(epoch, child)
        life.bring_up = self._loop.create_task(self._bring_up(life))
        life.reaper = self._loop.create_task(self._reap(life))

    async def _bring_up(self, life: _Life) -> None:
        """Connect as soon as the worker listens, then perform the handshake."""
        assert self._listener is not None
        try:
            connection = await life.child.connect()
            await self._listener.worker_up(connection, life.epoch)
        except (StrettoError, OSError) as error:
            log.error("the worker failed its handshake: %s", error)
            life.child.signal(signal.SIGKILL)
            return
        self._supervisor.connected(self._loop.time())
        self._changed.set()
        if self._first_up is not None and not self._first_up.done():
            self._first_up.set_result(None)

    async def _reap(self, life: _Life) -> None:
        code = await life.child.wait()
        if life.bring_up is not None:
            life.bring_up.cancel()
            await asyncio.gather(life.bring_up, return_exceptions=True)
        life.child.clean_up()
        actions = self._supervisor.exited(self._loop.time(), _described(code))
        if self.state is not WorkerState.DOWN:
            level = logging.WARNING if code else logging.INFO  # 0: a signal asked it to end
            log.log(level, "the worker ended (%s) and is restarted", self._supervisor.deaths.last_reason)
        self._act(actions)


def _described(code: int) -> str:
    if code >= 0:
        return f"it exited with status {code}"
    return f"it was killed by {signal.Signals(-code).name}"
