"""From settings to a generation model on llama.cpp: the options of model and context, and what was chosen.

Called by `loading`, which has found the file. `backends.llamacpp` is imported only here and only on use, so
that processes without llama.cpp can import the rest.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import settings as settings_
from stretto.core.limits import is_exact
from stretto.errors import LlamaCppMissingError
from stretto.rpc.messages import TextSource
from stretto.settings.used_by import check_used
from stretto.text.model_text import template_of
from stretto.worker.adapter_sources import adapter_sources
from stretto.worker.chat_templates import template_source
from stretto.worker.grammars import Grammars, words_of
from stretto.worker.loaded import Beat, LoadedModel, Progress
from stretto.worker.media import MediaEncoding, media_limits
from stretto.worker.model import ModelRuntime

if TYPE_CHECKING:
    from stretto.backends.llamacpp import LlamaCppBackend
    from stretto.backends.llamacpp.media import MediaOptions


def load_llamacpp(
    path: Path,
    chosen: settings_.ModelSettings,
    loaded: settings_.LoadedSettings,
    home: Path,
    *,
    progress: Progress | None = None,
    beat: Beat | None = None,
) -> LoadedModel:
    from stretto.backends.llamacpp import ContextOptions, LlamaCppBackend, ModelOptions

    unused = check_used(chosen, loaded.settings.defaults, "llamacpp")
    projector, missing = _projector(path, chosen)
    unused += missing
    backend = LlamaCppBackend.open(
        path,
        cache_dir=home,
        model_options=ModelOptions.from_settings(chosen),
        context_options=ContextOptions.from_settings(chosen),
        progress=None if progress is None else lambda done: progress("loading", done),
        cache_ram_bytes=chosen.cache_ram_bytes,
        adapters=adapter_sources(chosen),
        adapters_loaded_max=chosen.adapters_loaded_max,
        media=projector,
    )
    try:
        unused += _speculation(backend, chosen, home)
        runtime = _runtime(backend, chosen, beat)
    except BaseException:
        backend.close()
        raise
    description = {
        **_description(backend, path, chosen),
        "tools": runtime.text.tools_shown_by,
        "warnings": (*unused, *(warning.message for warning in backend.warnings)),
        "origins": dict(loaded.origin),
    }
    text, window = runtime.text, runtime.window
    source = TextSource(
        kind="llamacpp",
        path=str(path),
        template=None if text.template is None else text.template.source,
        add_bos=text.add_bos,
        window=window,
    )
    return LoadedModel(runtime, chosen, description, text_source=source)


def _runtime(backend: LlamaCppBackend, chosen: settings_.ModelSettings, beat: Beat | None) -> ModelRuntime:
    source = template_source(chosen) or backend.model.template
    vocabulary, media = backend.model.vocabulary, backend.media
    return ModelRuntime(
        backend,
        vocabulary,
        chosen.limits(),
        template=template_of(source, vocabulary) if source else None,
        add_bos=vocabulary.adds_bos,
        grammars=Grammars(lambda: words_of(vocabulary), lambda: backend.samplers.grammars),
        beat=beat,
        threads=lambda: backend.threads,
        adapters=backend.adapters.store if backend.adapters is not None else None,
        media=None if media is None else MediaEncoding(*media, limits=media_limits(chosen)),
    )


def _projector(path: Path, chosen: settings_.ModelSettings) -> tuple[MediaOptions | None, list[str]]:
    """The projector to load, if any, and a warning if one was found that cannot be used."""
    from stretto.backends.llamacpp.media import MediaOptions
    from stretto.backends.llamacpp.native.mtmd import mtmd
    from stretto.model_files import gguf, projectors

    if chosen.mmproj == "none":
        return None, []
    if chosen.mmproj != "auto":
        return MediaOptions(Path(chosen.mmproj).expanduser(), chosen.media_cache_bytes), []
    found = projectors.beside(gguf.read(path))
    if found is None:
        return None, []
    try:
        mtmd()
    except LlamaCppMissingError as error:
        return None, [f"{found.name} is not used: {error.message}"]
    return MediaOptions(found, chosen.media_cache_bytes), []


def _speculation(backend: LlamaCppBackend, chosen: settings_.ModelSettings, home: Path) -> list[str]:
    """Load the draft model, if there is one. Returns why there are no drafts, though some were asked for."""
    from stretto.backends.llamacpp.drafting.draft_model import DraftModel
    from stretto.backends.llamacpp.drafting.prices import with_prices
    from stretto.model_files.store import Store

    if not chosen.draft_model and chosen.speculation != "ngram":
        return []
    if backend.no_drafts:
        return [f"speculation is not used: {backend.no_drafts}"]
    if is_exact(chosen.limits(), backend.capabilities):
        return ["speculation is not used: with deterministic: on this machine verifies no drafts"]
    if chosen.draft_model:
        path = Store(home).resolve(chosen.draft_model)
        model = DraftModel.open(path, backend.context, cache_dir=home)
        backend.drafting.use_model(model, lookup=chosen.speculation == "ngram")
        priced = with_prices(backend.capabilities, backend.context, model)
        backend.capabilities = replace(priced, lookup_drafts=chosen.speculation == "ngram")
    return []


def _drafters(backend: LlamaCppBackend, chosen: settings_.ModelSettings) -> str:
    """For `show`: what makes drafts."""
    if not backend.drafting.drafts_max or is_exact(chosen.limits(), backend.capabilities):
        return "off"
    model = backend.drafting.model
    found = ["ngram"] * (chosen.speculation == "ngram")
    found += [f"draft model {model.model.file.path.name}"] if model is not None else []
    return " and ".join(found) or "off"


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
        "speculation": _drafters(backend, chosen),
        "adapters": sorted(chosen.adapters),
        "media": sorted(backend.media.projector.kinds) if backend.media is not None else [],
        "quirks": asdict(backend.quirks),
        "choices": {
            "origin": backend.choices.origin,
            "date": backend.choices.measured_on,
            "took_s": round(backend.choices.took_s, 3),
            "table": backend.choices.table(),
        },
    }
