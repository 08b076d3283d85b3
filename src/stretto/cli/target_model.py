"""The model that `estimate` examines: its shape, its weights, and the settings it would run with.

The file may be incomplete: a header without weights (the first megabytes of a download) is enough, as is one
without any tensors if the size of the weights is given.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stretto.backends.llamacpp.estimate import Configured
from stretto.backends.llamacpp.machine import expected, wants_gpu
from stretto.backends.llamacpp.options import CPU_DEVICE, ModelOptions
from stretto.backends.llamacpp.placement import (
    NO_TENSORS,
    DeviceMemory,
    GpuMemory,
    TensorSizes,
    by_device,
    used_gpus,
)
from stretto.cli.context import GlobalOptions
from stretto.cli.text import size
from stretto.errors import ModelError, ModelNotFoundError, TruncatedModelError
from stretto.model_files import adapter, fit, gguf
from stretto.model_files.hub import SHARD
from stretto.model_files.kind import ModelKind, ModelShape, shape_of
from stretto.model_files.projectors import bytes_for
from stretto.settings import ModelSettings
from stretto.settings.errors import from_validation
from stretto.settings.yaml_file import parse_value

SPARSE_BYTES = 1 << 42  # more than any model's weights, less than any file system's limit
EXAMPLE_NAME = "Qwen3-8B-Q8_0"
EXAMPLE_WEIGHTS_BYTES = 9_000_000_000
EXAMPLE_SETTINGS = {"context_window": 8192, "n_seq_max": 8, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
EXAMPLE_SHAPE = ModelShape(
    architecture="qwen3",
    kind=ModelKind.DENSE,
    context_length=40_960,
    layers=36,
    embedding_length=4_096,
    feed_forward_length=12_288,
    vocabulary_size=151_936,
    heads=32,
    kv_heads=(8,) * 36,
    key_length=128,
    value_length=128,
    recurrent=(False,) * 36,
)


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    shape: ModelShape
    weights: int
    settings: ModelSettings
    notes: tuple[str, ...] = ()
    layout: TensorSizes = NO_TENSORS
    gpus: tuple[GpuMemory, ...] = ()  # of the machine
    draft: tuple[ModelShape, int] | None = None  # shape and weights of its draft model
    projector: int = 0  # bytes of its weights
    adapters: int = 0  # bytes of those that are kept in memory

    @property
    def configured(self) -> Configured:
        options = ModelOptions.from_settings(self.settings)
        machine = replace(expected(options, in_worker=True), on_gpu=bool(self.gpus) and wants_gpu(options))
        found = Configured.of(
            self.shape,
            self.settings,
            machine,
            projector_bytes=self.projector,
            adapters_bytes=self.adapters,
        )
        return found.with_draft(*self.draft) if self.draft is not None else found

    @property
    def window(self) -> int:
        return self.configured.window

    @property
    def slots(self) -> int:
        return self.settings.n_seq_max

    def with_weights(self, given: int | None) -> Subject:
        """A copy with another size of the weights, required for a file without any."""
        if given is not None:
            return replace(self, weights=given)
        if self.weights:
            return self
        return replace(
            self, notes=(*self.notes, "the file contains no tensors: --weights 9GB sets their size")
        )

    def estimate(self) -> fit.Estimate:
        return self.configured.estimate(self.weights)

    @property
    def used_gpus(self) -> list[GpuMemory]:
        return used_gpus(ModelOptions.from_settings(self.settings), self.gpus)

    def by_device(self, result: fit.Estimate) -> dict[str, DeviceMemory]:
        """The memory on each device; empty where the model runs on the CPU alone."""
        if not self.used_gpus:
            return {}
        options = ModelOptions.from_settings(self.settings)
        kv_there = self.settings.offload_kqv
        return by_device(result, self.shape, options, self.layout, self.gpus, offload_kqv=kv_there)

    def fit(self, free_bytes: int, host_bytes: int) -> fit.Fit:
        """`free_bytes`: where the model computes, of all GPUs together; `host_bytes`: of the machine."""
        configured = self.configured
        if not configured.machine.on_gpu:
            return configured.fit(self.weights, free_bytes, on_gpu=False)
        free = {gpu.name: gpu.free for gpu in self.gpus} | {CPU_DEVICE: host_bytes}

        def fits(found: fit.Estimate) -> bool:
            return all(each.total <= free[name] for name, each in self.by_device(found).items())

        return configured.fit(self.weights, free_bytes, on_gpu=True, fits=fits)

    def facts(self) -> list[tuple[str, str]]:
        """The input values, under their names in the file."""
        shape, settings = self.shape, self.settings
        heads = sorted(set(shape.kv_heads))
        return [
            ("model", f"{self.name} ({shape.architecture}, {shape.kind.value})"),
            ("weights", size(self.weights)),
            ("context_window", f"{self.window:,} tokens per slot"),
            ("n_seq_max", f"{self.slots} slots"),
            *([("n_ctx", f"{settings.n_ctx:,} tokens for all slots")] if settings.n_ctx != "auto" else []),
            ("cache types", f"{settings.cache_type_k} keys, {settings.cache_type_v} values"),
            ("block_count", str(shape.layers)),
            ("attention.head_count_kv", ", ".join(map(str, heads))),
            ("attention.key_length", str(shape.key_length)),
            ("attention.value_length", str(shape.value_length)),
        ]


def example(flags: Mapping[str, Any]) -> Subject:
    """The guide's example; flags change it, the settings file does not."""
    given = {name: parse_value(value) if isinstance(value, str) else value for name, value in flags.items()}
    try:
        settings = ModelSettings.model_validate({**EXAMPLE_SETTINGS, **given})
    except ValidationError as error:
        raise from_validation(error) from None
    return Subject(EXAMPLE_NAME, EXAMPLE_SHAPE, EXAMPLE_WEIGHTS_BYTES, settings)


def subject_of(context: GlobalOptions, model: str, flags: Mapping[str, Any]) -> Subject:
    """A model by name or file, with the settings it would run with."""
    settings = context.settings(flags).settings.model(model)
    try:
        path = _path(context, settings.path or model)
    except ModelNotFoundError:
        if model != EXAMPLE_NAME:
            raise
        note = f"{model} is not local: the values are those of its published shape"
        return Subject(EXAMPLE_NAME, EXAMPLE_SHAPE, EXAMPLE_WEIGHTS_BYTES, settings, (note,))
    file, notes = _header(path)
    paths = [Path(each.path).expanduser() for each in settings.adapters.values()]
    adapters, wrong = adapter.bytes_for(file, paths, loaded_max=settings.adapters_loaded_max)
    subject = Subject(
        path.name,
        shape_of(file),
        _weights(file),
        settings,
        notes=(*notes, *wrong),
        layout=TensorSizes.of(file),
        projector=bytes_for(file, settings.mmproj),
        adapters=adapters,
    )
    if not settings.draft_model:
        return subject
    draft, more = _header(_path(context, settings.draft_model))
    return replace(subject, draft=(shape_of(draft), _weights(draft)), notes=(*subject.notes, *more))


def _path(context: GlobalOptions, name: str) -> Path:
    """An existing file is used even if incomplete; everything else is looked up."""
    from stretto.model_files import bundled
    from stretto.model_files.store import DEFAULT_NAMES

    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name in DEFAULT_NAMES:
        from stretto.cli.listing import default_files

        return (default_files(context.cache_dir) or [bundled.source()])[-1]
    return context.store().resolve(name)


def _header(path: Path) -> tuple[gguf.GgufFile, tuple[str, ...]]:
    try:
        return gguf.read(path), ()
    except TruncatedModelError as error:
        try:
            file = _header_alone(path)
        except (ModelError, OSError):
            raise error from None
        return file, (f"{path.name} is incomplete: the values are from its header",)


def _header_alone(path: Path) -> gguf.GgufFile:
    """Read a header without its weights, through a sparse copy of full size that passes every check."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as copy, path.open("rb") as source:
        copy.write(source.read(gguf.HEADER_BYTES_MAX))
        copy.flush()
        os.truncate(copy.name, SPARSE_BYTES)
        return gguf.read(copy.name)


def _weights(file: gguf.GgufFile) -> int:
    """Size of all local shards of a split model."""
    shard = SHARD.search(file.path.name)
    if file.shards == 1 or shard is None:
        return file.weights_bytes
    stem = re.escape(file.path.name[: shard.start()])
    pattern = re.compile(rf"{stem}-\d{{5}}-of-{shard[2]}\.gguf", re.IGNORECASE)
    parts = [path for path in sorted(file.path.parent.iterdir()) if pattern.fullmatch(path.name)]
    return sum(gguf.read(path).weights_bytes for path in parts)
