"""What a model and its context are asked for: options by the names of the settings.

Frozen values, without llama.cpp and numpy: the command line builds them to estimate memory. `plan.resolve`
turns them into what llama.cpp gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from stretto.settings import ModelSettings

WINDOW_DEFAULT_MAX = 8192
CPU_DEVICE = "CPU"  # the name under which llama.cpp lists it
ROPE_FIELDS = (
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_orig_ctx",
    "rope_scaling_type",
)
ROPE_SCALING = {"none": 0, "linear": 1, "yarn": 2, "longrope": 3}
_NO_ROPE: Mapping[str, float | str] = MappingProxyType({})
_ALL_ON: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    n_gpu_layers: int = -1  # -1: all
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: Sequence[float] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    use_direct_io: bool = False
    devices: Sequence[str] = ()  # by ggml's names; empty: all
    override_tensors: Sequence[tuple[str, str]] = ()  # regular expression of names, device
    n_cpu_moe: int = 0  # layers whose experts stay on the CPU; -1: all
    kernels: str = "auto"  # own, llamacpp, or auto: our own where the process is Stretto's

    @classmethod
    def from_settings(cls, chosen: ModelSettings) -> ModelOptions:
        given = {
            **_same_names(cls, chosen),
            "n_gpu_layers": -1 if chosen.n_gpu_layers == "all" else chosen.n_gpu_layers,
            "tensor_split": tuple(chosen.tensor_split or ()),
            "devices": tuple(chosen.devices or ()),
            "override_tensors": tuple(chosen.override_tensors.items()),
            "n_cpu_moe": -1 if chosen.n_cpu_moe == "all" else chosen.n_cpu_moe,
        }
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    n_seq_max: int = 4
    context_window: int = 0  # tokens of each slot; 0: the model's own, at most 8192
    n_batch: int = 2048
    n_ubatch: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"  # see `attention.resolve`
    unified: bool = False
    pool_tokens: int = 0  # unified: tokens of all slots together; 0: n_seq_max windows
    swa_full: bool = True
    n_threads: int = 0  # 0: as many as the process may use
    n_threads_batch: int = 0
    drafts_max: int = 0  # most draft tokens that one slot verifies in a tick; 0: no speculation
    offload_kqv: bool = True
    op_offload: bool = True
    rope: Mapping[str, float | str] = field(default_factory=lambda: _NO_ROPE)
    deterministic: bool = False  # refuse or avoid whatever makes output depend on the batch
    quirks_off: frozenset[str] = _ALL_ON  # answers to llama.cpp's quirks that are switched off (`quirks`)

    @classmethod
    def from_settings(cls, chosen: ModelSettings) -> ContextOptions:
        """Fields with the name of a setting take its value ("auto" is 0); the others are listed here."""
        given = {
            **_same_names(cls, chosen),
            "unified": chosen.kv_layout == "unified",
            "pool_tokens": 0 if chosen.n_ctx == "auto" else chosen.n_ctx,
            "drafts_max": chosen.drafts,
            "rope": {name: value for name in ROPE_FIELDS if (value := getattr(chosen, name)) is not None},
            "deterministic": chosen.deterministic == "on",
            "quirks_off": frozenset(chosen.quirks_off),
        }
        return cls(**given)

    def window(self, trained: int) -> int:
        """Tokens of each slot, for a model that was trained on `trained` tokens."""
        window = self.context_window or min(trained, WINDOW_DEFAULT_MAX)
        return min(window, self.pool_tokens) if self.unified and self.pool_tokens else window


def draft_options(target: ContextOptions, window: int) -> ContextOptions:
    """The context of a draft model: as many sequences as the target, a stream for each."""
    return replace(target, context_window=window, drafts_max=0, unified=False, pool_tokens=0)


def _same_names(options: Any, chosen: ModelSettings) -> dict[str, Any]:
    """Values of the settings that have the name of a field; "auto" is 0 where the field is a number."""
    found: dict[str, Any] = {}
    for each in fields(options):
        if each.name in ModelSettings.model_fields:
            value = getattr(chosen, each.name)
            found[each.name] = 0 if value == "auto" and isinstance(each.default, int) else value
    return found
