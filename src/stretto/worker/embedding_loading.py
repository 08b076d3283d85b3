"""Loads embedding and reranking models: chooses the number of contexts and the batch size.

On a CPU, one single-threaded context per core gave the most texts per second, and batches of 128 tokens were
as fast as larger ones while new requests wait less (benchmarks/embeddings.py). On a GPU a batch holds
`n_ubatch` tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import settings as settings_
from stretto.settings.places import cache_home
from stretto.settings.used_by import check_used
from stretto.worker.contexts import ContextPool
from stretto.worker.embed_inputs import Frame, InputReader
from stretto.worker.embedding import EmbeddingRuntime, Making
from stretto.worker.loaded import LoadedModel, Progress
from stretto.worker.loading import load
from stretto.worker.model_paths import find
from stretto.worker.packing import Packer

if TYPE_CHECKING:
    from stretto.backends.llamacpp.model import Model

BATCH_TOKENS_CPU = 128
RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
_SOFTMAX_ARCHITECTURES = ("qwen3", "qwen3vl")  # llama.cpp ends their ranking graphs with a softmax


def load_any(
    model: str | Path | None,
    settings: Mapping[str, Any],
    *,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    config: str | Path | None = None,
) -> LoadedModel | EmbeddingRuntime:
    """Load a model of whichever kind the file contains."""
    loaded = settings_.load(config, flags=settings)
    for note in loaded.notes:
        warnings.warn(note, FutureWarning, stacklevel=3)  # at the line that made the `LLM`
    given = loaded.settings
    name = str(model) if model is not None else ""
    chosen = given.model(name) if name in given.models else given.defaults
    home = Path(cache_dir) if cache_dir is not None else cache_home()
    wanted = chosen.path or name
    if wanted and chosen.backend in ("auto", "llamacpp") and not Path(wanted).is_dir():
        path = find(wanted, home, progress)
        if path.is_file() and makes_vectors(path):
            return load_embedding(path, chosen, given.defaults, home=home, progress=progress)
    return load(model, settings, cache_dir=cache_dir, progress=progress, config=config)


def makes_vectors(path: Path) -> bool:
    """Whether a file contains an embedding model or a reranker."""
    from stretto.model_files import gguf
    from stretto.model_files.kind import shape_of

    return not shape_of(gguf.read(path)).generates


def load_embedding(
    path: Path,
    chosen: settings_.ModelSettings,
    common: settings_.ModelSettings,
    *,
    home: Path,
    progress: Progress | None = None,
) -> EmbeddingRuntime:
    """Raises a StrettoError that says in one line what is wrong and what to do."""
    from stretto.backends.llamacpp import ModelOptions
    from stretto.backends.llamacpp.model import load as load_weights

    unused = check_used(chosen, common, "embedding")
    report = None if progress is None else lambda done: progress("loading", done)
    model = load_weights(path, ModelOptions.from_settings(chosen), cache_dir=home, progress=report)
    try:
        return _at_work(model, chosen, unused)
    except BaseException:
        model.close()
        raise


def _at_work(model: Model, chosen: settings_.ModelSettings, unused: list[str]) -> EmbeddingRuntime:
    from stretto.backends.llamacpp.embedding import (
        EmbeddingContext,
        EmbeddingOptions,
        Pooling,
        marks_of,
        pooling_of,
        window_of,
    )

    contexts, threads = shared_cores(chosen, on_gpu=model.on_gpu)
    options = EmbeddingOptions(
        context_window=0 if chosen.context_window == "auto" else chosen.context_window,
        n_threads=threads,
        flash_attention=chosen.flash_attention,
    )
    pooling, window = pooling_of(model), window_of(model, options.context_window)
    marks = marks_of(model)
    first = EmbeddingContext(model, options)
    batch_tokens = min(batch_tokens_of(chosen, on_gpu=model.on_gpu), first.pass_tokens_max)
    ready = [first]
    pool = ContextPool(
        lambda: ready.pop() if ready else EmbeddingContext(model, options),
        size=contexts,
        packer=Packer(tokens_max=batch_tokens, sequences_max=first.sequences_max),
        requests_max=chosen.max_queue + contexts,
    )
    template = model.file.metadata.get(RERANK_TEMPLATE, "")
    frame = Frame(marks.before, marks.after, marks.between, template if isinstance(template, str) else "")
    reader = InputReader(model.vocabulary, frame, window=window, inputs_max=chosen.embed_inputs_max)
    ranks = pooling is Pooling.RANK
    making = Making(
        name=model.file.path.name,
        width=first.width,
        ranks=ranks,
        probabilities=ranks and model.shape.architecture in _SOFTMAX_ARCHITECTURES,
    )
    description: dict[str, Any] = {
        "model": model.file.path.name,
        "kind": model.shape.kind.value,
        "backend": "llamacpp",
        "slots": contexts,
        "context_window": window,
        "threads": threads,
        "batch_tokens": batch_tokens,
        "pooling": pooling.name.lower(),
        "width": first.width,
        "warnings": (*unused, *(warning.message for warning in model.warnings)),
    }
    return EmbeddingRuntime(
        pool,
        reader,
        making,
        tokenizer=model.vocabulary,
        description=description,
        on_close=model.close,
    )


def shared_cores(chosen: settings_.ModelSettings, *, on_gpu: bool) -> tuple[int, int]:
    """(contexts, threads per context): as configured, otherwise one context per core."""
    from stretto.backends.llamacpp.native.cpu_limits import cores

    asked = "n_seq_max" in chosen.model_fields_set
    contexts = chosen.n_seq_max if asked or on_gpu else min(chosen.n_seq_max, cores())
    if chosen.n_threads != "auto":
        return contexts, chosen.n_threads
    return contexts, max(1, cores() // contexts)


def batch_tokens_of(chosen: settings_.ModelSettings, *, on_gpu: bool) -> int:
    if chosen.embed_batch_tokens != "auto":
        return chosen.embed_batch_tokens
    return chosen.n_ubatch if on_gpu else min(BATCH_TOKENS_CPU, chosen.n_ubatch)
