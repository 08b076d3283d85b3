"""Which loader uses which model setting, so that none is accepted and then ignored.

Knows names only. Each loader calls `check_used` first: a setting that was given for this model but is not
used by the loader is rejected, with the backend that supports it. An inherited setting (from `defaults:`, a
flag or a variable shared with other models) becomes a warning.
"""

from __future__ import annotations

from typing import Literal

from stretto.errors import SettingsError
from stretto.settings.model import CACHE_SWITCHES, ModelSettings

Loader = Literal["llamacpp", "torch", "simulated", "embedding"]

_GENERATING = ("llamacpp", "torch", "simulated")
_LLAMACPP_FILES = ("llamacpp", "embedding")
_ALL = (*_GENERATING, "embedding")

USERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("path", "backend", "context_window", "n_seq_max", "max_queue"), _ALL),
    **dict.fromkeys(
        (
            "n_ctx",
            "n_batch",
            "prefill_chunk",
            "target_itl_ms",
            "cache",
            *CACHE_SWITCHES,
            "cache_min_tokens",
            "cache_slot_timeout",
            "queue_depth",
            "max_queue_wait_s",
            "slice_tokens",
            "preemption",
            "tenant_weights",
            "seed",
            "adapters",
            "adapters_loaded_max",
        ),
        _GENERATING,
    ),
    **dict.fromkeys(
        (
            "kernels",
            "main_gpu",
            "tensor_split",
            "split_mode",
            "override_tensors",
            "n_cpu_moe",
            "use_mmap",
            "use_mlock",
            "use_direct_io",
        ),
        _LLAMACPP_FILES,
    ),
    **dict.fromkeys(
        (
            "cache_type_k",
            "cache_type_v",
            "kv_layout",
            "swa_full",
            "offload_kqv",
            "op_offload",
            "quirks_off",
            "n_threads_batch",
            "rope_scaling_type",
            "rope_freq_base",
            "rope_freq_scale",
            "yarn_ext_factor",
            "yarn_attn_factor",
            "yarn_beta_fast",
            "yarn_beta_slow",
            "yarn_orig_ctx",
        ),
        ("llamacpp",),
    ),
    **dict.fromkeys(("speculation", "speculation_tokens"), ("llamacpp", "torch", "simulated")),
    **dict.fromkeys(
        ("load_format", "dtype", "kv_dtype", "quantization", "page_tokens", "tensor_parallel", "warm_up"),
        ("torch",),
    ),
    **dict.fromkeys(("embed_inputs_max", "embed_batch_tokens"), ("embedding",)),
    "draft_model": ("llamacpp", "torch"),
    **dict.fromkeys(
        ("mmproj", "n_media_max", "media_bytes_max", "media_cache_bytes"), ("llamacpp", "simulated")
    ),
    "cache_ram_bytes": ("llamacpp", "torch", "simulated"),
    "deterministic": ("llamacpp", "simulated"),
    "chat_template": ("llamacpp", "torch"),
    "n_ubatch": _LLAMACPP_FILES,
    "flash_attention": _LLAMACPP_FILES,
    "n_gpu_layers": ("llamacpp", "torch", "embedding"),
    "devices": ("llamacpp", "torch", "embedding"),
    "n_threads": ("llamacpp", "torch", "embedding"),
    "simulated_tick_ms": ("simulated",),
}


def check_used(chosen: ModelSettings, common: ModelSettings, loader: Loader) -> list[str]:
    """Reject settings of this model that have no effect; return a warning for each inherited one.

    `common` are the settings of unlisted models. For such a model, a flag for the wrong backend is rejected,
    and one for the other kind of model (generating, embedding) is a warning.
    """
    if loader == "torch":
        _check_torch(chosen)
    warnings: list[str] = []
    for name in sorted(_given(chosen)):
        if loader in USERS[name]:
            continue
        text = f"{name} is set, but {_LOADERS[loader]} does not use it"
        inherited = chosen is not common and getattr(chosen, name) == getattr(common, name)
        if inherited or (chosen is common and _for_other_kind(name, loader)):
            warnings.append(text)
            continue
        raise SettingsError(text, hint=f"omit {name}; {_owners(name)}")
    if loader in _GENERATING and _slices_in_vain(chosen):
        warnings.append(
            "slice_tokens is not used: time slicing needs n_seq_max of 2 or more, because the oldest running "
            "request is never preempted"
        )
    return warnings


def _slices_in_vain(chosen: ModelSettings) -> bool:
    return "slice_tokens" in chosen.model_fields_set and chosen.slice_tokens > 0 and chosen.n_seq_max == 1


_LOADERS: dict[str, str] = {
    "llamacpp": "the llama.cpp backend",
    "torch": "the torch backend",
    "simulated": "the simulated backend",
    "embedding": "an embedding model",
}


def _given(chosen: ModelSettings) -> set[str]:
    """Settings that differ from their default."""
    fields = ModelSettings.model_fields
    return {
        name
        for name in chosen.model_fields_set
        if name not in CACHE_SWITCHES and getattr(chosen, name) != fields[name].default
    }


def _for_other_kind(name: str, loader: Loader) -> bool:
    """Flags of `stretto serve` apply to every model, so one for embeddings may reach a chat model."""
    users = USERS[name]
    return users == ("embedding",) if loader != "embedding" else any(user in _GENERATING for user in users)


def _owners(name: str) -> str:
    owners = " and ".join(_LOADERS[user] for user in USERS[name])
    return f"{owners} {'support' if len(USERS[name]) > 1 else 'supports'} it"


def _check_torch(chosen: ModelSettings) -> None:
    """Reject values that the torch backend does not support."""
    if chosen.n_gpu_layers not in ("all", 0):
        raise SettingsError(
            f"n_gpu_layers is {chosen.n_gpu_layers}, but the torch backend cannot split a model by layers",
            hint="set all or 0; the llama.cpp backend takes any number",
        )
    if chosen.devices is not None and len(chosen.devices) not in (1, chosen.tensor_parallel):
        raise SettingsError(
            f"devices names {len(chosen.devices)} devices, but the torch backend runs on "
            f"{chosen.tensor_parallel}",
            hint="name one, such as cuda:0 or cpu, or set tensor_parallel to their number",
        )
