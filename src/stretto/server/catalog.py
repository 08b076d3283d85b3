"""Resolves model names. Unknown names are rejected with a list of the models that are served."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from stretto.client.api import WorkerClient
from stretto.errors import ModelNotFoundError, StrettoError
from stretto.rpc.messages import ModelInfo

FRESH_S = 2.0
NAMES_MAX = 8  # listed in an error


class Catalog:
    """The worker's models. Known names are cached: the worker rejects models that were removed since."""

    def __init__(self, worker_client: WorkerClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker_client = worker_client
        self._clock = clock
        self._models: list[ModelInfo] = []
        self._seen_s = float("-inf")
        self.since = int(time.time())

    async def models(self) -> list[ModelInfo]:
        self._models = await self._worker_client.models()
        self._seen_s = self._clock()
        return self._models

    async def find(self, name: str | None, *kinds: str) -> ModelInfo:
        """The model of that name; without a name, the first of these kinds, else the first."""
        found = self._named(name, kinds)
        stale = not name and self._clock() - self._seen_s > FRESH_S
        if found is None or stale:
            found = await self._looked_up(name, kinds)
        if found is None and not name and self._models:
            found = self._models[0]  # it rejects what it does not support
        if found is None:
            asked = f"the model {name[:128]!r}" if name else "a model"
            raise ModelNotFoundError(f"{asked} is not served here", hint=self._hint())
        return found

    async def _looked_up(self, name: str | None, kinds: tuple[str, ...]) -> ModelInfo | None:
        """While the worker restarts, the cached models are used."""
        try:
            await self.models()
        except StrettoError:
            if self._named(name, kinds) is None:
                raise
        return self._named(name, kinds)

    def _named(self, name: str | None, kinds: tuple[str, ...]) -> ModelInfo | None:
        if name:
            found = next((model for model in self._models if model.id == name), None)
            return found or self._adapted(name)
        special = ("embedding", "reranker")
        fitting = [m for m in self._models if m.kind in kinds or (not kinds and m.kind not in special)]
        loaded = [model for model in fitting if model.loaded]
        return next(iter(loaded or fitting), None)

    def _adapted(self, name: str) -> ModelInfo | None:
        """A model by the name of one of its adapters: `model:adapter`, or the adapter's alone."""
        named = [(model, adapter) for model in self._models for adapter in model.adapters]
        for model, adapter in named:
            if name == f"{model.id}:{adapter}":
                return msgspec.structs.replace(model, asked_adapter=adapter)
        found = next((model for model, adapter in named if adapter == name), None)
        return None if found is None else msgspec.structs.replace(found, asked_adapter=name)

    def _hint(self) -> str:
        names = [model.id for model in self._models]
        if not names:
            return "no model is served yet"
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        return f"served: {', '.join(names[:NAMES_MAX])}{more}"
