"""Catalogue: which models this worker may serve, how much memory each needs, and how each is loaded.

Only models that the operator configured, pulled or passed at start are served: a model name in a request is
never interpreted as a path.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import settings as settings_
from stretto.errors import ModelNotFoundError
from stretto.rpc.heartbeat import HeartbeatWriter
from stretto.settings.places import cache_home
from stretto.worker.embedding import EmbeddingRuntime
from stretto.worker.embedding_loading import load_embedding, makes_vectors
from stretto.worker.loaded import Beat, LoadedModel, Progress
from stretto.worker.loading import load
from stretto.worker.model_paths import find

if TYPE_CHECKING:
    from stretto.model_files import gguf

SIMULATED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Launch:
    """What a worker is started with: models by name or path, and sources of settings."""

    models: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    cache_dir: str | None = None


class Catalogue:
    """The model pool's `Loader`, based on the settings and the store. Thread-safe."""

    def __init__(self, launch: Launch, *, heartbeat: HeartbeatWriter | None = None) -> None:
        self._launch = launch
        self._settings = settings_.load(launch.config, flags=launch.flags).settings
        self._home = Path(launch.cache_dir) if launch.cache_dir is not None else cache_home()
        self._heartbeat = heartbeat
        self._names = self._listed()

    @property
    def settings(self) -> settings_.Settings:
        return self._settings

    def ids(self) -> Sequence[str]:
        """Configured models, the default one first."""
        return tuple(self._names)

    def resolve(self, model_id: str) -> str:
        """The canonical id of a model. "" is the default model; pulled models use their own name."""
        if not model_id:
            return next(iter(self._names))
        if model_id in self._names:
            return model_id
        pulled = {spelling: name for name, stem in self._pulled() for spelling in (name, stem)}
        if model_id in pulled:
            return pulled[model_id]
        near = difflib.get_close_matches(model_id, [*self._names, *pulled], 1)
        hint = f"did you mean {near[0]}?" if near else None
        raise ModelNotFoundError(f"model {model_id[:120]!r} does not exist", hint=hint)

    def adapters(self, model_id: str) -> Sequence[str]:
        return tuple(self._chosen(model_id).adapters)

    def estimate_bytes(self, model_id: str, progress: Progress) -> int:
        """Estimated memory for weights, slots and buffers (prepares the file on first use)."""
        chosen = self._chosen(model_id)
        if chosen.backend == "simulated":
            return SIMULATED_BYTES
        path = find(chosen.path or self._names.get(model_id, model_id), self._home, progress)
        draft = find(chosen.draft_model, self._home) if chosen.draft_model else None
        if path.is_file():
            return _gguf_bytes(path, chosen, draft)
        return _directory_bytes(path) + (_file_bytes(draft) if draft is not None else 0)

    def load(self, model_id: str, progress: Progress) -> LoadedModel | EmbeddingRuntime:
        chosen = self._chosen(model_id)
        if chosen.backend in ("auto", "llamacpp"):
            path = find(chosen.path or self._names.get(model_id, model_id), self._home, progress)
            if path.is_file() and makes_vectors(path):
                common = self._settings.defaults
                return load_embedding(path, chosen, common, home=self._home, progress=progress)
        return self._load_generating(model_id, progress)

    def _load_generating(self, model_id: str, progress: Progress) -> LoadedModel:
        index = self._heartbeat.take() if self._heartbeat is not None else None
        try:
            loaded = load(
                self._names.get(model_id, model_id) or None,
                self._launch.flags,
                cache_dir=self._home,
                progress=progress,
                config=self._launch.config,
                beat=self._beat(index),
            )
        except BaseException:
            self._give_back(index)
            raise
        return replace(loaded, after_close=lambda: self._give_back(index))

    def _beat(self, index: int | None) -> Beat | None:
        writer = self._heartbeat
        if writer is None or index is None:
            return None
        return lambda steps, working: writer.beat(index, steps, working=working)

    def _give_back(self, index: int | None) -> None:
        if self._heartbeat is not None and index is not None:
            self._heartbeat.give_back(index)

    def _chosen(self, model_id: str) -> settings_.ModelSettings:
        return self._settings.model(self._names.get(model_id, model_id))

    def _listed(self) -> dict[str, str]:
        """Id → name to load the model by."""
        names = {_id_of(name): name for name in self._launch.models}
        names |= {name: name for name in self._settings.models}
        if names:
            return names
        return {"simulated" if self._settings.defaults.backend == "simulated" else _default_name(): ""}

    def _pulled(self) -> list[tuple[str, str]]:
        from stretto.model_files.store import Store

        return [(model.name, model.path.stem) for model in Store(self._home).ls()]


def _id_of(name: str) -> str:
    """File name for a path, otherwise the name itself."""
    is_path = name.endswith(".gguf") or name.startswith(("/", "./", "../", "~"))
    return Path(name).name.removesuffix(".gguf") if is_path else name


def _default_name() -> str:
    from stretto.model_files.bundled import NAME

    return NAME


def _gguf_bytes(path: Path, chosen: settings_.ModelSettings, draft: Path | None) -> int:
    from stretto.backends.llamacpp.estimate import Configured
    from stretto.model_files import adapter, gguf, projectors
    from stretto.model_files.kind import shape_of

    file = gguf.read(path)
    paths = [Path(each.path).expanduser() for each in chosen.adapters.values()]
    configured = Configured.of(
        shape_of(file),
        chosen,
        projector_bytes=projectors.bytes_for(file, chosen.mmproj),
        adapters_bytes=adapter.bytes_for(file, paths, loaded_max=chosen.adapters_loaded_max)[0],
    )
    beside = 0
    if draft is not None and draft.is_dir():
        beside = _directory_bytes(draft)
    elif draft is not None:
        small = gguf.read(draft)
        configured = configured.with_draft(shape_of(small), _weights_bytes(small))
    return configured.estimate(_weights_bytes(file)).total + beside


def _weights_bytes(file: gguf.GgufFile) -> int:
    """Size of all shards, if the model is split into several files."""
    from stretto.model_files.hub import SHARD

    shard = SHARD.search(file.path.name)
    if shard is None:
        return file.weights_bytes
    parts = file.path.parent.glob(f"{glob.escape(file.path.name[: shard.start()])}-*.gguf")
    return sum(part.stat().st_size for part in parts if SHARD.search(part.name))


def _file_bytes(path: Path) -> int:
    """Weights of a folder or a GGUF file."""
    from stretto.model_files import gguf

    return _directory_bytes(path) if path.is_dir() else _weights_bytes(gguf.read(path))


def _directory_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
