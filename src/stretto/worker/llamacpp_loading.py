"""From settings to a generation model on llama.cpp: the options of model and context, and what was chosen.

Called by `loading`, which has found the file. `backends.llamacpp` is imported only here and only on use, so
that processes without llama.cpp can import the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import settings as settings_
from stretto.core.limits import is_exact
from stretto.settings.used_by import check_used
from stretto.worker.chat_templates import template_of, template_source
from stretto.worker.grammars import Grammars, words_of
from stretto.worker.loaded import Beat, Loaded, Progress
from stretto.worker.model import ModelRuntime

if TYPE_CHECKING:
    from stretto.backends.llamacpp import ContextOptions, LlamaCppBackend
    from stretto.backends.llamacpp.model import ModelOptions


def load_llamacpp(
    path: Path,
    chosen: settings_.ModelSettings,
    loaded: settings_.Loaded,
    home: Path,
    *,
    progress: Progress | None = None,
    beat: Beat | None = None,
) -> Loaded:
    from stretto.backends.llamacpp import LlamaCppBackend

    unused = check_used(chosen, loaded.settings.defaults, "llamacpp")
    backend = LlamaCppBackend.open(
        path,
        cache_dir=home,
        model_options=model_options(chosen),
        context_options=context_options(chosen),
        progress=None if progress is None else lambda done: progress("loading", done),
        cache_ram_bytes=chosen.cache_ram_bytes,
    )
    try:
        runtime = _runtime(backend, chosen, beat)
    except BaseException:
        backend.close()
        raise
    if chosen.speculation == "ngram" and is_exact(chosen.limits(), backend.capabilities):
        unused.append("speculation is not used: with deterministic: on this machine verifies no drafts")
    description = {
        **_description(backend, path, chosen),
        "tools": runtime.tools_shown_by,
        "warnings": (*unused, *(warning.message for warning in backend.warnings)),
        "origins": dict(loaded.origin),
    }
    return Loaded(runtime, chosen, description)


def model_options(chosen: settings_.ModelSettings) -> ModelOptions:
    from stretto.backends.llamacpp.model import ModelOptions

    return ModelOptions(
        n_gpu_layers=-1 if chosen.n_gpu_layers == "all" else chosen.n_gpu_layers,
        split_mode=chosen.split_mode,
        main_gpu=chosen.main_gpu,
        tensor_split=tuple(chosen.tensor_split or ()),
        use_mmap=chosen.use_mmap,
        use_mlock=chosen.use_mlock,
        use_direct_io=chosen.use_direct_io,
        devices=tuple(chosen.devices or ()),
    )


def context_options(chosen: settings_.ModelSettings) -> ContextOptions:
    """0 stands for `auto`."""
    from stretto.backends.llamacpp import ContextOptions

    return ContextOptions(
        n_seq_max=chosen.n_seq_max,
        context_window=0 if chosen.context_window == "auto" else chosen.context_window,
        n_batch=chosen.n_batch,
        n_ubatch=chosen.n_ubatch,
        cache_type_k=chosen.cache_type_k,
        cache_type_v=chosen.cache_type_v,
        flash_attention=chosen.flash_attention,
        unified=chosen.kv_layout == "unified",
        pool_tokens=0 if chosen.n_ctx == "auto" else chosen.n_ctx,
        swa_full=chosen.swa_full,
        n_threads=0 if chosen.n_threads == "auto" else chosen.n_threads,
        n_threads_batch=0 if chosen.n_threads_batch == "auto" else chosen.n_threads_batch,
        drafts_max=chosen.speculation_tokens,
        offload_kqv=chosen.offload_kqv,
        op_offload=chosen.op_offload,
        rope=_rope(chosen),
        deterministic=chosen.deterministic == "on",
    )


def _rope(chosen: settings_.ModelSettings) -> dict[str, Any]:
    names = ("freq_base", "freq_scale", "scaling_type")
    found = {f"rope_{name}": getattr(chosen, f"rope_{name}") for name in names}
    yarn = ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "orig_ctx")
    found |= {f"yarn_{name}": getattr(chosen, f"yarn_{name}") for name in yarn}
    return {name: value for name, value in found.items() if value is not None}


def _runtime(backend: LlamaCppBackend, chosen: settings_.ModelSettings, beat: Beat | None) -> ModelRuntime:
    source = template_source(chosen) or backend.model.template
    vocabulary = backend.model.vocabulary
    return ModelRuntime(
        backend,
        vocabulary,
        chosen.limits(),
        template=template_of(source, vocabulary) if source else None,
        add_bos=vocabulary.adds_bos,
        grammars=Grammars(lambda: words_of(vocabulary), lambda: backend.samplers.grammars),
        beat=beat,
        threads=lambda: backend.threads,
    )


def _description(backend: LlamaCppBackend, path: Path, chosen: settings_.ModelSettings) -> dict[str, Any]:
    plan = backend.context.plan
    return {
        "model": path.name,
        "kind": backend.model.shape.kind.value,
        "backend": "llamacpp",
        "slots": plan.n_seq_max,
        "context_window": plan.window,
        "n_ctx": plan.n_ctx,
        "kv_layout": "unified" if plan.unified else "streams",
        "threads": plan.n_threads,
        "cache": chosen.cache,
        "cache_types": f"{plan.cache_type_k}/{plan.cache_type_v}",
        "flash_attention": plan.flash_attention,
        "deterministic": chosen.deterministic,
    }
