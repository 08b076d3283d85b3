"""Loads models on the torch backend: a Hugging Face directory, or a GGUF file that is dequantized.

Called by `loading` for `backend: torch`, and by default for directories with a `config.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stretto import settings as settings_
from stretto.errors import ModelFileError, TorchMissingError
from stretto.rpc.messages import TextSource
from stretto.settings.places import cache_home
from stretto.settings.used_by import check_used
from stretto.text.model_text import template_of
from stretto.text.tokenizer import Tokenizer
from stretto.worker.adapter_sources import adapter_sources
from stretto.worker.chat_templates import template_source
from stretto.worker.grammars import Grammars, words_of
from stretto.worker.loaded import Beat, LoadedModel, Progress
from stretto.worker.model import ModelRuntime
from stretto.worker.model_paths import find
from stretto.worker.own_process import end_with_rank, is_claimed

if TYPE_CHECKING:
    from stretto.backends.torch.loading import Opened


def load_torch(
    path: Path,
    chosen: settings_.ModelSettings,
    loaded: settings_.LoadedSettings,
    home: Path | None = None,
    *,
    progress: Progress | None = None,
    beat: Beat | None = None,
) -> LoadedModel:
    """`home`: the cache directory, for compiled kernels."""
    unused = check_used(chosen, loaded.settings.defaults, "torch")
    opened = _open(path, chosen, home, progress)
    try:
        words = _tokenizer(opened, path, chosen)
        source = template_source(chosen) or opened.template
        runtime = ModelRuntime(
            opened.backend,
            words,
            chosen.limits(),
            template=template_of(source, words) if source else None,
            add_bos=opened.tokenizer is not None and opened.tokenizer.adds_bos,
            grammars=_grammars(opened),
            beat=beat,
            late_work=lambda: opened.backend.late_work,
            adapters=opened.backend.adapters.store if opened.backend.adapters is not None else None,
        )
    except BaseException:
        opened.backend.close()
        raise
    about = _description(opened, path, chosen, loaded)
    description = {**about, "tools": runtime.text.tools_shown_by, "warnings": tuple(unused)}
    return LoadedModel(runtime, chosen, description, text_source=_source(opened, path, runtime))


def _source(opened: Opened, path: Path, runtime: ModelRuntime) -> TextSource:
    text, shape = runtime.text, opened.shape
    kind: Literal["spelling", "gguf", "huggingface"] = "gguf" if path.suffix == ".gguf" else "huggingface"
    return TextSource(
        kind="spelling" if opened.tokenizer is None else kind,
        path=str(path),
        vocab=shape.vocab,
        template=None if text.template is None else text.template.source,
        add_bos=text.add_bos,
        bos=shape.bos,
        eos=sorted(shape.eos),
        window=runtime.window,
    )


def _open(
    path: Path, chosen: settings_.ModelSettings, home: Path | None, progress: Progress | None
) -> Opened:
    try:
        from stretto.backends.torch.loading import TorchOptions, open_model
    except ImportError as error:
        raise TorchMissingError(
            f"{path.name} needs the torch backend, which is not installed or does not load: {error}"
        ) from error
    device = chosen.devices[0] if chosen.devices else "auto"
    return open_model(
        path,
        TorchOptions(
            slots=chosen.n_seq_max,
            window=0 if chosen.context_window == "auto" else chosen.context_window,
            rows_max=chosen.n_batch,
            page_tokens=chosen.page_tokens,
            pages=0 if chosen.n_ctx == "auto" else -(-chosen.n_ctx // chosen.page_tokens),
            device="cpu" if chosen.n_gpu_layers == 0 else device,
            tensor_parallel=chosen.tensor_parallel,
            rank_devices=("cpu",) if chosen.n_gpu_layers == 0 else tuple(chosen.devices or ()),
            on_lost=end_with_rank if is_claimed() else None,
            dtype=chosen.dtype,
            kv_dtype=chosen.kv_dtype,
            host_bytes=chosen.cache_ram_bytes if "cache_ram_bytes" in chosen.model_fields_set else 0,
            quantization=chosen.quantization,
            load_format=chosen.load_format,
            warm_up=chosen.warm_up,
            kernel_cache=home,
            threads=0 if chosen.n_threads == "auto" else chosen.n_threads,
            adapters=adapter_sources(chosen),
            adapters_loaded_max=chosen.adapters_loaded_max,
            drafts_max=chosen.drafts,
            draft_model=_draft_path(chosen, home),
            lookup=chosen.speculation == "ngram",
        ),
        progress,
    )


def _draft_path(chosen: settings_.ModelSettings, home: Path | None) -> Path | None:
    return find(chosen.draft_model, home or cache_home()) if chosen.draft_model else None


def _drafters(chosen: settings_.ModelSettings) -> str:
    """For `show`: what makes drafts."""
    found = ["ngram"] * (chosen.speculation == "ngram")
    found += [f"draft model {Path(chosen.draft_model).name}"] if chosen.draft_model else []
    return " and ".join(found) or "off"


def _tokenizer(opened: Opened, path: Path, chosen: settings_.ModelSettings) -> Tokenizer:
    """The model's tokenizer; a byte tokenizer for random weights."""
    if opened.tokenizer is not None:
        return opened.tokenizer
    if chosen.load_format == "dummy":
        from stretto.backends.simulated.text import SpellingTokenizer

        return SpellingTokenizer(opened.shape.vocab)
    raise ModelFileError(f"{path} has no tokenizer.json", hint="copy it from the model's repository")


def _grammars(opened: Opened) -> Grammars | None:
    words = opened.tokenizer
    return (
        None
        if words is None or opened.grammars is None
        else Grammars(lambda: words_of(words), opened.grammars)
    )


def _description(
    opened: Opened, path: Path, chosen: settings_.ModelSettings, loaded: settings_.LoadedSettings
) -> dict[str, Any]:
    can, place = opened.backend.capabilities, opened.backend.model.place
    return {
        "model": path.name,
        "kind": "moe" if opened.shape.experts is not None else "dense",
        "backend": "torch",
        "slots": can.sequences_max,
        "context_window": can.window,
        "device": str(place.device),
        "tensor_parallel": chosen.tensor_parallel,
        "dtype": str(place.dtype).removeprefix("torch."),
        "kv_dtype": "fp8" if opened.backend.pool.is_fp8 else str(place.dtype).removeprefix("torch."),
        "quantization": "fp8" if place.fp8 else "none",
        "pages": f"{can.pages} of {can.page_tokens} tokens",
        "cache": chosen.cache,
        "speculation": _drafters(chosen),
        "adapters": sorted(chosen.adapters),
        "load_s": {name: round(seconds, 3) for name, seconds in opened.seconds.items()},
        "origins": dict(loaded.origin),
    }
