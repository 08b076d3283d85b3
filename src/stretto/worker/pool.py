"""The models of a worker: loaded on demand, one at a time, within a memory budget.

All state belongs to the RPC loop; loading and closing happen on threads. A model is busy while it is leased
or its loop has work, and a busy model is never unloaded. When memory is short the least recently used idle
model is unloaded first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stretto.errors import (
    ModelBusyError,
    ModelMemoryError,
    ModelNotFoundError,
    ModelTooLargeError,
    ShuttingDownError,
)
from stretto.rpc.messages import LoadProgress, ModelInfo

PROGRESS_S = 0.1  # between two progress notifications of a load


class Resident(Protocol):
    """A loaded model. `close` may take long and is called on a thread."""

    @property
    def description(self) -> Mapping[str, Any]: ...
    @property
    def busy(self) -> bool: ...
    @property
    def alive(self) -> bool: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


class Loader(Protocol):
    """Loads models. `estimate_bytes` and `load` are called on threads."""

    def ids(self) -> Sequence[str]: ...
    def resolve(self, model_id: str) -> str: ...
    def adapters(self, model_id: str) -> Sequence[str]: ...
    def estimate_bytes(self, model_id: str, progress: Callable[[str, float], None]) -> int: ...
    def load(self, model_id: str, progress: Callable[[str, float], None]) -> Resident: ...


class PoolEntry:
    """One model, loaded or loading."""

    __slots__ = ("id", "leases", "loading", "memory_bytes", "progress", "resident", "shown_s", "used_s")

    def __init__(self, model_id: str) -> None:
        self.id = model_id
        self.resident: Resident | None = None
        self.loading: asyncio.Task[None] | None = None
        self.leases = 0
        self.used_s = 0.0
        self.memory_bytes = 0
        self.progress: LoadProgress | None = None
        self.shown_s = 0.0

    @property
    def busy(self) -> bool:
        return self.leases > 0 or (self.resident is not None and self.resident.busy)


class ModelPool:
    def __init__(
        self,
        loader: Loader,
        *,
        budget_bytes: int,
        idle_unload_s: float | None = None,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
        on_loaded: Callable[[str, Resident], None] = lambda _id, _resident: None,
        on_unloaded: Callable[[str, Resident], None] = lambda _id, _resident: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader = loader
        self._budget_bytes = budget_bytes
        self._idle_unload_s = idle_unload_s
        self._on_progress = on_progress
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded
        self._clock = clock
        self._entries: dict[str, PoolEntry] = {}
        self._room = asyncio.Lock()  # serializes memory accounting and eviction
        self._closed = False

    # --- leases ----------------------------------------------------------------------------------

    async def acquire(self, model_id: str) -> PoolEntry:
        """Lease a model, loading it if needed; give it back with `release`."""
        entry = self._entry(self._loader.resolve(model_id))
        entry.leases += 1
        try:
            await self._ensure(entry)
        except BaseException:
            self.release(entry)
            raise
        return entry

    def release(self, entry: PoolEntry) -> None:
        entry.leases -= 1
        entry.used_s = self._clock()

    def loaded(self) -> list[tuple[str, Resident]]:
        return [(entry.id, entry.resident) for entry in self._entries.values() if entry.resident is not None]

    def infos(self) -> list[ModelInfo]:
        ids = dict.fromkeys([*self._loader.ids(), *self._entries])
        return [self.info(model_id) for model_id in ids]

    def info(self, model_id: str) -> ModelInfo:
        """By canonical id, loaded or not."""
        entry = self._entries.get(model_id)
        if entry is None:
            return ModelInfo(id=model_id, adapters=list(self._loader.adapters(model_id)))
        about = dict(entry.resident.description) if entry.resident is not None else {}
        return ModelInfo(
            id=entry.id,
            kind=str(about.get("kind", "")),
            loaded=entry.resident is not None,
            loading=entry.loading is not None,
            busy=entry.busy,
            backend=str(about.get("backend", "")),
            slots=int(about.get("slots", 0)),
            context_window=int(about.get("context_window", 0)),
            text_bound=getattr(entry.resident, "text_bound", None),
            memory_bytes=entry.memory_bytes,
            description=about,
            vocabulary=dict(getattr(entry.resident, "vocabulary", {})),
            text=getattr(entry.resident, "text_source", None),
            adapters=list(self._loader.adapters(model_id)),
            modalities=list(getattr(entry.resident, "modalities", ())),
        )

    # --- unloading -------------------------------------------------------------------------------

    async def unload(self, model_id: str) -> None:
        entry = self._entries.get(self._loader.resolve(model_id))
        if entry is None or (entry.resident is None and entry.loading is None):
            raise ModelNotFoundError(f"{model_id or 'the model'} is not loaded", hint="nothing to unload")
        if entry.busy or entry.loading is not None:
            raise ModelBusyError(f"{entry.id} is in use")
        async with self._room:
            if not entry.busy:
                await self._close(entry)

    async def sweep(self) -> None:
        """Unload models that were idle for `idle_unload_s`, and models whose loop failed."""
        now = self._clock()
        async with self._room:
            for entry in list(self._entries.values()):
                resident = entry.resident
                if resident is None or entry.leases or (resident.alive and resident.busy):
                    continue
                late = self._idle_unload_s is not None and now - entry.used_s >= self._idle_unload_s
                if late or not resident.alive:
                    await self._close(entry)

    def drain(self) -> None:
        for _, resident in self.loaded():
            resident.drain()

    async def close(self) -> None:
        """Close every model. Loads in progress are awaited: native code cannot be interrupted."""
        self._closed = True
        loads = [entry.loading for entry in self._entries.values() if entry.loading is not None]
        await asyncio.gather(*loads, return_exceptions=True)
        for entry in self._entries.values():
            if entry.resident is not None:
                await self._close(entry)

    # --- inside ----------------------------------------------------------------------------------

    def _entry(self, model_id: str) -> PoolEntry:
        return self._entries.setdefault(model_id, PoolEntry(model_id))

    async def _ensure(self, entry: PoolEntry) -> None:
        if self._closed:
            raise ShuttingDownError("the worker is shutting down")
        if entry.resident is not None and entry.resident.alive:
            return
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._load(entry), name=f"load {entry.id}")
            entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(entry.loading)

    def _loaded(self, model_id: str, progress: Callable[[str, float], None]) -> Resident:
        resident = self._loader.load(model_id, progress)
        getattr(resident, "text_bound", None)  # reads the whole vocabulary: not on the RPC loop
        return resident

    async def _load(self, entry: PoolEntry) -> None:
        try:
            loop = asyncio.get_running_loop()

            def progress(stage: str, fraction: float) -> None:
                loop.call_soon_threadsafe(self._progress, entry, stage, fraction)

            need = await asyncio.to_thread(self._loader.estimate_bytes, entry.id, progress)
            async with self._room:
                if entry.resident is not None:  # its loop failed: load again
                    await self._close(entry)
                await self._make_room(entry.id, need)
                entry.memory_bytes = need
            resident = await asyncio.to_thread(self._loaded, entry.id, progress)
            entry.resident, entry.used_s = resident, self._clock()
            self._on_loaded(entry.id, resident)
            self._progress(entry, "ready", 1.0)
        finally:
            entry.loading = entry.progress = None
            if entry.resident is None:
                entry.memory_bytes = 0

    async def _make_room(self, model_id: str, need: int) -> None:
        if need > self._budget_bytes:
            raise ModelTooLargeError(
                f"{model_id} needs {need:,} bytes, the budget for all models is {self._budget_bytes:,}"
            )
        while self._used_bytes() + need > self._budget_bytes:
            idle = [e for e in self._entries.values() if e.resident is not None and not e.busy]
            if not idle:
                raise ModelMemoryError(f"no memory for {model_id}: all loaded models are in use")
            await self._close(min(idle, key=lambda e: e.used_s))

    def _used_bytes(self) -> int:
        return sum(entry.memory_bytes for entry in self._entries.values())

    async def _close(self, entry: PoolEntry) -> None:
        resident, entry.resident = entry.resident, None
        if resident is not None:
            await asyncio.to_thread(resident.close)
            self._on_unloaded(entry.id, resident)
        entry.memory_bytes = 0

    def _progress(self, entry: PoolEntry, stage: str, fraction: float) -> None:
        now = self._clock()
        changed = entry.progress is None or entry.progress.stage != stage
        entry.progress = LoadProgress(model_id=entry.id, stage=stage, fraction=fraction)
        if changed or fraction >= 1.0 or now - entry.shown_s >= PROGRESS_S:
            entry.shown_s = now
            self._on_progress(entry.progress)
