"""Loads a generating model from a name and settings: chooses the file, the backend and the limits.

`description` lists the choices and where each came from; the command line prints it at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto import settings as settings_
from stretto.backends.adapters import AdapterStore
from stretto.backends.media import RowStore
from stretto.rpc.messages import TextSource
from stretto.settings.places import cache_home
from stretto.settings.used_by import check_used
from stretto.worker.adapter_sources import adapter_sources
from stretto.worker.llamacpp_loading import load_llamacpp
from stretto.worker.loaded import Beat, LoadedModel, Progress
from stretto.worker.media import MediaEncoding, media_limits
from stretto.worker.model import ModelRuntime
from stretto.worker.model_paths import find
from stretto.worker.torch_loading import load_torch


def load(
    model: str | Path | None,
    settings: Mapping[str, Any],
    *,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    config: str | Path | None = None,
    beat: Beat | None = None,
) -> LoadedModel:
    """Raises a StrettoError that says in one line what is wrong and what to do."""
    loaded = settings_.load(config, flags=settings)
    name = str(model) if model is not None else ""
    chosen = loaded.settings.model(name) if name in loaded.settings.models else loaded.settings.defaults
    home = Path(cache_dir) if cache_dir is not None else cache_home()
    common = loaded.settings.defaults
    if chosen.backend == "simulated":
        return _simulated(chosen, check_used(chosen, common, "simulated"), beat)
    path = find(chosen.path or name, home, progress)
    if chosen.backend == "torch" or (chosen.backend == "auto" and path.is_dir()):
        return load_torch(path, chosen, loaded, home, progress=progress, beat=beat)
    return load_llamacpp(path, chosen, loaded, home, progress=progress, beat=beat)


def _simulated(chosen: settings_.ModelSettings, unused: list[str], beat: Beat | None) -> LoadedModel:
    """No model: for trying out the server and for measuring everything around the model.

    Its output is the same from run to run: the default seed is 0.
    """
    from stretto.backends.simulated import SimulatedModel
    from stretto.backends.simulated.model import SimulatedAdapter
    from stretto.backends.simulated.paced import PacedBackend
    from stretto.backends.simulated.text import SpellingTokenizer
    from stretto.core.capabilities import Capabilities, Share

    window = 8192 if chosen.context_window == "auto" else chosen.context_window
    sources = adapter_sources(chosen)
    media = _simulated_media(chosen)
    can = Capabilities(
        sequences_max=chosen.n_seq_max,
        window=window,
        vocab=512,
        rows_max=chosen.n_batch,
        adapters=bool(sources),
        one_group=bool(sources),
        media_rows_max=chosen.n_batch if media is not None else 0,
    )
    if chosen.n_ctx != "auto":
        can = replace(can, share=Share.RANGE, pages=chosen.n_ctx)
    backend = PacedBackend(can, model=SimulatedModel(vocab=512), tick_s=chosen.simulated_tick_ms / 1000)
    if media is not None:
        backend.encoded = media.store
    adapters = AdapterStore(sources, lambda *_: SimulatedAdapter(), loaded_max=chosen.adapters_loaded_max)
    runtime = ModelRuntime(
        backend,
        SpellingTokenizer(),
        chosen.limits(),
        beat=beat,
        adapters=adapters if sources else None,
        media=media,
    )
    description = {
        "model": "simulated",
        "backend": "simulated",
        "slots": chosen.n_seq_max,
        "context_window": window,
        "adapters": sorted(chosen.adapters),
        "media": sorted(media.encoder.kinds) if media is not None else [],
        "tools": runtime.text.tools_shown_by,
        "warnings": tuple(unused),
    }
    source = TextSource(kind="spelling", vocab=512, window=runtime.window)
    seeded = chosen.model_copy(update={"seed": chosen.seed or 0})
    return LoadedModel(runtime, seeded, description, text_source=source)


def _simulated_media(chosen: settings_.ModelSettings) -> MediaEncoding | None:
    """Eyes and ears for the simulated backend, if its settings name a projector."""
    from stretto.backends.simulated.encoder import SimulatedMediaEncoder

    if chosen.mmproj in ("auto", "none"):
        return None
    store = RowStore(chosen.media_cache_bytes)
    return MediaEncoding(SimulatedMediaEncoder(), store, limits=media_limits(chosen))
