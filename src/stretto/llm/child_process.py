"""ChildProcess: a worker process that belongs to this program, and the event loop that speaks with it.

Starts and watches `python -m stretto.worker` with the same client as the server; a worker that dies is
replaced and loads the model again. Ends with `close`, and with this program however it ends (the worker sees
the end of its stdin). Knows no requests: `llm.child_runtime` does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stretto.client.host import SupervisedHost
from stretto.client.process import WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.client.supervisor import WorkerState
from stretto.errors import RuntimeUnavailableError, ShuttingDownError, StrettoError
from stretto.llm.event_thread import EventThread
from stretto.rpc.messages import LoadProgress, ModelInfo, ModelStats
from stretto.settings import Settings

Progress = Callable[[str, float], None]
FOREVER_S = 1e9
LEVELS = ((logging.DEBUG, "debug"), (logging.INFO, "info"), (logging.WARNING, "warning"))
log = logging.getLogger("stretto.llm")


@dataclass(frozen=True, slots=True)
class ChildStart:
    """What `LLM` was given."""

    name: str
    flags: Mapping[str, Any]
    config: str | Path | None
    cache_dir: str | Path | None

    def worker(self) -> WorkerStart:
        """The worker logs to stderr what this program's loggers would show."""
        level = logging.getLogger("stretto").getEffectiveLevel()
        return WorkerStart(
            models=(self.name,),
            flags=msgspec.to_builtins(dict(self.flags), enc_hook=str),  # paths
            config=None if self.config is None else os.fspath(self.config),
            cache_dir=None if self.cache_dir is None else os.fspath(self.cache_dir),
            log_level=next((name for bound, name in LEVELS if level <= bound), "error"),
        )


class ChildProcess:
    def __init__(self, start: ChildStart, settings: Settings) -> None:
        self._owner_pid = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._thread = EventThread("stretto-client")
        self.client = self._thread.wait_for(_client(start.worker(), _without_limits(settings)))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._thread.loop

    @property
    def pid(self) -> int | None:
        """Of the worker; None while there is none."""
        host = self.client.host
        return host.pid if isinstance(host, SupervisedHost) and host.state is WorkerState.UP else None

    # --- the model -------------------------------------------------------------------------------

    def load(self, progress: Progress | None) -> ModelInfo:
        """Start the worker and load the model; `progress` is called on this thread."""
        steps: queue.SimpleQueue[LoadProgress | None] = queue.SimpleQueue()
        if progress is not None:
            self.client.on_progress = steps.put
        loading = asyncio.run_coroutine_threadsafe(self._load(), self.loop)
        loading.add_done_callback(lambda _: steps.put(None))
        while (step := steps.get()) is not None:
            if progress is not None:
                progress(step.stage, step.fraction)
        found = loading.result()
        self.client.on_progress = lambda _: None
        self.client.on_models = self._reload
        return found

    async def _load(self) -> ModelInfo:
        await self.client.start()
        return await self.client.load("")

    def _reload(self, models: list[ModelInfo]) -> None:
        """A worker that replaced another one loads the model now, not with the next request."""
        if models and not models[0].loaded and not models[0].loading and not self._closed:
            self._task = self.loop.create_task(self._load_again())

    async def _load_again(self) -> None:
        try:
            await self.client.load("")
        except StrettoError as error:
            if not self._closed:
                log.warning("the model could not be loaded again: %s", error)

    def stats(self) -> ModelStats:
        """Blocks until the worker has answered."""
        if self._closed:
            raise ShuttingDownError("the model is closed")
        found = self._thread.wait_for(self.client.stats()).models
        if not found:
            raise RuntimeUnavailableError("the worker is loading the model again")
        return found[0]

    # --- the end ---------------------------------------------------------------------------------

    def close(self, ended: Callable[[], None] = lambda: None) -> None:
        """Returns when the process has ended. `ended` is called on the loop's thread once the client is
        closed, and again when nothing more can arrive. A forked copy of this program closes nothing.
        """
        if os.getpid() != self._owner_pid:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._thread.at_end = ended
        if self._thread.is_current:  # collected as garbage by the thread that would have to wait
            self._task = self.loop.create_task(self._stop(ended))
            return
        self._thread.wait_for(self._stop(ended))
        self._thread.join()

    async def _stop(self, ended: Callable[[], None]) -> None:
        try:
            await self.client.close()
        finally:
            ended()
            self.loop.call_soon(self.loop.stop)


async def _client(start: WorkerStart, settings: Settings) -> RpcClient:
    """Made on its event loop."""
    return RpcClient.supervised(start, settings)


def _without_limits(settings: Settings) -> Settings:
    """The limits of a server protect it from its clients; here there is one, which always reads.

    The scheduler's limits (`max_queue` and others) hold as they do in the caller's process.
    """
    engine = settings.engine.model_copy(
        update={
            "streams_max": 1 << 20,
            "stream_credit_tokens": 1 << 30,
            "stream_buffer_bytes": 1 << 40,
            "slow_consumer_timeout_s": FOREVER_S,
            "stream_timeout_s": FOREVER_S,
            "stream_idle_timeout_s": FOREVER_S,
            "load_timeout_s": FOREVER_S,
        }
    )
    return settings.model_copy(update={"engine": engine})
