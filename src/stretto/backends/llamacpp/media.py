"""Opens what a model needs for pictures and sounds: a checked projector, and the store of its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stretto.backends.llamacpp.encoder_time import EncoderTime
from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native import mtmd as native
from stretto.backends.llamacpp.projector import Projector
from stretto.backends.llamacpp.projector_trial import require
from stretto.backends.media import RowStore
from stretto.errors import ModelRefusedError
from stretto.model_files import projectors


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """`path`: the projector's file. `cache_bytes`: for encoded media that no request needs."""

    path: Path
    cache_bytes: int = 256 << 20


class Media(NamedTuple):
    """What a model needs for media: its encoder, and the rows that it made."""

    projector: Projector
    store: RowStore

    @property
    def time(self) -> EncoderTime:
        return self.projector.time


def open_media(model: Model, options: MediaOptions, *, cache_dir: Path | None, trial: bool = True) -> Media:
    """Load a projector whose header is sound and which a child process could use. Raises ModelError."""
    native.mtmd()
    projectors.read(options.path)
    from stretto.backends.llamacpp.kernels.probe import (
        special_buffers_work,  # a child runs it as its main module
    )

    packed = special_buffers_work(cache_dir)
    if trial:
        packed = _try(model.file.path, options.path, cache_dir, packed=packed)
    threads = len(os.sched_getaffinity(0))
    projector = Projector(model.weights, options.path, n_threads=threads, on_gpu=model.on_gpu, packed=packed)
    return Media(projector, RowStore(options.cache_bytes))


def _try(model: Path, projector: Path, cache_dir: Path | None, *, packed: bool) -> bool:
    """Whether its matrices are to be packed: not where only plain ones work. Raises ModelRefusedError."""
    if packed:
        try:
            require(model, projector, cache_dir=cache_dir, packed=True)
        except ModelRefusedError:
            packed = False
    if not packed:
        require(model, projector, cache_dir=cache_dir, packed=False)
    return packed
