"""From a name and settings to a model at work: which file, which backend, which limits, and why.

`description` says what was chosen and where each choice came from; the command line prints it at start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import settings as settings_
from stretto.core.limits import is_exact
from stretto.errors import InvalidRequestError
from stretto.rpc.text_bound import TextBound
from stretto.settings.places import cache_home
from stretto.settings.used_by import check_used
from stretto.text.templates import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.worker.grammars import Grammars, words_of
from stretto.worker.model import ModelRuntime

if TYPE_CHECKING:
    from stretto.backends.llamacpp.model import ModelOptions

Progress = Callable[[str, float], None]

Beat = Callable[[int, bool], None]


TEMPLATE_CHARS_MAX = 1 << 16  # of one that is shown to clients


def _name(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model at work, with the settings it got and what was chosen for it."""

    runtime: ModelRuntime
    settings: settings_.ModelSettings
    description: Mapping[str, Any]
    after_close: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return self.runtime.stats.busy or self.runtime.stats.queued > 0

    @property
    def alive(self) -> bool:
        return self.runtime.alive

    @property
    def drafts(self) -> int:
        """Tokens to guess for a request that says nothing about it."""
        return self.settings.speculation_tokens if self.settings.speculation == "ngram" else 0

    @property
    def text_bound(self) -> TextBound | None:
        return self.runtime.text_bound

    @property
    def vocabulary(self) -> Mapping[str, Any]:
        """What clients with a tokenizer of their own ask for."""
        tokenizer, template = self.runtime.tokenizer, self.runtime.template
        ends = sorted(tokenizer.eos)
        return {
            "bos_token": None if tokenizer.bos is None else _name(tokenizer, tokenizer.bos),
            "eos_token": _name(tokenizer, ends[0]) if ends else None,
            "vocab_size": tokenizer.vocab_size,
            "chat_template": template.source[:TEMPLATE_CHARS_MAX] if template is not None else None,
        }

    def drain(self) -> None:
        self.runtime.drain()

    def close(self) -> None:
        self.runtime.close()
        if self.after_close is not None:
            self.after_close()


def load(
    model: str | Path | None,
    settings: Mapping[str, Any],
    *,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    config: str | Path | None = None,
    beat: Beat | None = None,
) -> Loaded:
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
        from stretto.worker.torch_loading import load_torch

        return load_torch(path, chosen, loaded, progress=progress, beat=beat)
    return _llamacpp(path, chosen, loaded, home, progress, beat)


def find(name: str, home: Path, progress: Progress | None = None) -> Path:
    """The file behind a name, or the folder; without one, the default model."""
    from stretto.model_files.store import Store

    if name and (folder := Path(name).expanduser()).is_dir():
        return folder

    store = Store(home)
    if not name:
        report = (
            None
            if progress is None
            else lambda done, total: progress("preparing the default model", done / max(total, 1))
        )
        return store.ensure_default(report)
    return store.resolve(name)


def _llamacpp(
    path: Path,
    chosen: settings_.ModelSettings,
    loaded: settings_.Loaded,
    home: Path,
    progress: Progress | None,
    beat: Beat | None,
) -> Loaded:
    from stretto.backends.llamacpp import ContextOptions, LlamaCppBackend

    unused = check_used(chosen, loaded.settings.defaults, "llamacpp")
    backend = LlamaCppBackend.open(
        path,
        cache_dir=home,
        model_options=model_options(chosen),
        context_options=ContextOptions(
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
        ),
        progress=None if progress is None else lambda done: progress("loading", done),
        cache_ram_bytes=chosen.cache_ram_bytes,
    )

    try:
        source = template_source(chosen) or backend.model.template
        vocabulary = backend.model.vocabulary
        template = template_of(source, vocabulary) if source else None
        runtime = ModelRuntime(
            backend,
            vocabulary,
            chosen.limits(),
            template=template,
            add_bos=vocabulary.adds_bos,
            grammars=Grammars(lambda: words_of(vocabulary), lambda: backend.samplers.grammars),
            beat=beat,
            threads=lambda: backend.threads,
        )
    except BaseException:
        backend.close()
        raise
    if chosen.speculation == "ngram" and is_exact(chosen.limits(), backend.capabilities):
        unused.append("speculation is not used: with deterministic: on this machine verifies no drafts")
    plan = backend.context.plan
    description = {
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


def template_of(source: str, vocabulary: Tokenizer) -> ChatTemplate:
    """The model's own template. Its end-of-text is the smallest token that ends a generation."""
    named = [vocabulary.bos, min(vocabulary.eos, default=None)]
    bos, eos = ("" if t is None else vocabulary.token_bytes(t).decode("utf-8", "replace") for t in named)
    return ChatTemplate(source, bos=bos, eos=eos)


def _rope(chosen: settings_.ModelSettings) -> dict[str, Any]:
    names = ("freq_base", "freq_scale", "scaling_type")
    found = {f"rope_{name}": getattr(chosen, f"rope_{name}") for name in names}
    yarn = ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "orig_ctx")
    found |= {f"yarn_{name}": getattr(chosen, f"yarn_{name}") for name in yarn}
    return {name: value for name, value in found.items() if value is not None}


def template_source(chosen: settings_.ModelSettings) -> str | None:
    if chosen.chat_template is None:
        return None
    try:
        return Path(chosen.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidRequestError(
            f"the chat template {chosen.chat_template} cannot be read: {reason}", hint="name a text file"
        ) from None


def _simulated(chosen: settings_.ModelSettings, unused: list[str], beat: Beat | None) -> Loaded:
    """No model at all: for trying out the machinery, and for measuring everything around it.

    Its texts are the same from run to run: a seed that nobody chose is 0.
    """
    from stretto.backends.simulated import SimulatedModel
    from stretto.backends.simulated.paced import PacedBackend
    from stretto.backends.simulated.text import SpellingTokenizer
    from stretto.core.capabilities import Capabilities, Share

    window = 8192 if chosen.context_window == "auto" else chosen.context_window
    can = Capabilities(sequences_max=chosen.n_seq_max, window=window, vocab=512, rows_max=chosen.n_batch)
    if chosen.n_ctx != "auto":
        can = replace(can, share=Share.RANGE, pages=chosen.n_ctx)
    backend = PacedBackend(can, model=SimulatedModel(vocab=512), tick_s=chosen.simulated_tick_ms / 1000)
    runtime = ModelRuntime(backend, SpellingTokenizer(), chosen.limits(), beat=beat)
    description = {
        "model": "simulated",
        "backend": "simulated",
        "slots": chosen.n_seq_max,
        "context_window": window,
        "tools": runtime.tools_shown_by,
        "warnings": tuple(unused),
    }
    return Loaded(runtime, chosen.model_copy(update={"seed": chosen.seed or 0}), description)
