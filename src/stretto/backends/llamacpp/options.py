"""What a context is made from, and what becomes of it: options resolved for one model, with warnings.

Knows which options contradict each other, which ones a model kind forces, and which would end the process.
Calls nothing in C. `Plan` is what `context` then asks llama.cpp for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from stretto.backends.llamacpp.kernels.interpose import attends
from stretto.backends.llamacpp.model import LoadWarning, Model
from stretto.backends.llamacpp.native.cpu_limits import cores
from stretto.backends.llamacpp.native.library import half_precision
from stretto.errors import ContextError, DeterminismError, StrettoError
from stretto.model_files import fit

SEQUENCES_MAX = 256  # LLAMA_MAX_SEQ
WINDOW_DEFAULT_MAX = 8192
ROW_ATTENTION_WINDOW_MAX = (
    4096  # with llama.cpp's attention: faster up to 700 tokens, a tenth slower behind 2,000
)
CELLS_QUANTUM = 256
OUTPUTS_MIN = 32  # rows of a pass with logits: so many of a prompt's are measured at a time
TILE_ROWS = 64  # of a sequence in a pass: from here on flash attention goes in tiles on a CPU
CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
FAST_ON_CPU = ("f16", "f32")  # where it was measured q8_0 took 2.8 times and bf16 7 times as long as f16
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    n_seq_max: int = 4
    context_window: int = 0  # tokens that each slot gets; 0: the model's own, at most 8192
    n_batch: int = 2048
    n_ubatch: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"  # see `fit.attention`
    unified: bool = False
    pool_tokens: int = 0  # unified: tokens of all slots together; 0: n_seq_max windows
    swa_full: bool = True
    n_threads: int = 0  # 0: as many as the process may use
    n_threads_batch: int = 0
    drafts_max: int = 8  # most draft tokens that one slot verifies in a tick
    offload_kqv: bool = True
    op_offload: bool = True
    rope: Mapping[str, float | str] = field(default_factory=lambda: _NO_ROPE)
    deterministic: bool = False  # refuse, and leave out, whatever makes texts depend on their neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Options as llama.cpp gets them."""

    n_ctx: int
    window: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    n_outputs_max: int
    cache_type_k: str
    cache_type_v: str
    flash_attention: bool
    side_context: bool  # long prompts run in a second context, with flash attention
    unified: bool
    swa_full: bool
    n_threads: int
    n_threads_batch: int
    offload_kqv: bool
    op_offload: bool
    rope: Mapping[str, float | str]
    warnings: tuple[LoadWarning, ...] = ()


def resolve(model: Model, options: ContextOptions) -> Plan:
    """Options for this model, or a ContextError that names the two things which do not go together."""
    _check(model, options)
    warnings = list(model.warnings)
    threads = options.n_threads or cores()
    window = options.context_window or min(model.n_ctx_train, WINDOW_DEFAULT_MAX)
    keys, values, attention = _attention(model, options, window, warnings)
    if options.deterministic:
        attention = _invariant(model, options, keys, values, attention)
    if window > model.n_ctx_train and not options.rope:
        text = f"context_window {window} is more than the {model.n_ctx_train} tokens the model was trained on"
        warnings.append(LoadWarning("window_beyond_training", text))
    if options.pool_tokens and (not options.unified or model.is_recurrent):
        raise ContextError(
            "n_ctx is the size of a pool that all slots share, and "
            + ("a recurrent model keeps a state for each slot" if options.unified else "streams have none"),
            hint="leave n_ctx out" if options.unified else "set kv_layout: unified",
        )
    pool = options.pool_tokens or window * options.n_seq_max
    if options.unified and pool < window:
        window = pool
    _check_memory(
        model,
        options,
        window=window,
        pool=pool,
        keys=keys,
        values=values,
        side_context=attention.side_context,
    )
    return Plan(
        n_ctx=pool if options.unified else window * options.n_seq_max,
        window=window,
        n_seq_max=options.n_seq_max,
        n_batch=options.n_batch,
        n_ubatch=min(attention.n_ubatch, options.n_batch),
        n_outputs_max=min(options.n_batch, max(OUTPUTS_MIN, options.n_seq_max * (1 + options.drafts_max))),
        cache_type_k=keys,
        cache_type_v=values,
        flash_attention=attention.flash,
        side_context=attention.side_context,
        unified=options.unified,
        swa_full=options.swa_full,
        n_threads=threads,
        n_threads_batch=options.n_threads_batch or threads,
        offload_kqv=options.offload_kqv,
        op_offload=options.op_offload,
        rope=options.rope,
        warnings=tuple(warnings),
    )


def _check(model: Model, options: ContextOptions) -> None:
    if not model.shape.generates:
        raise ContextError(
            f"{model.file.path} is an {model.shape.kind.value} model: it does not generate text",
            hint="name a language model; embedding models serve /v1/embeddings",
        )
    if not 1 <= options.n_seq_max <= SEQUENCES_MAX:
        raise ContextError(f"n_seq_max is {options.n_seq_max}, not 1 to {SEQUENCES_MAX}")
    if options.n_batch < options.n_seq_max:
        raise ContextError(f"n_batch ({options.n_batch}) is less than n_seq_max ({options.n_seq_max})")
    if options.n_ubatch < 1 or options.drafts_max < 0 or options.context_window < 0:
        raise ContextError("n_ubatch starts at 1, drafts_max and context_window at 0")
    for name in (options.cache_type_k, options.cache_type_v):
        if name not in CACHE_TYPES:
            raise ContextError(f"cache type {name!r} is not one of {', '.join(CACHE_TYPES)}", hint="use f16")
    if options.flash_attention not in ("auto", "on", "off", "long"):
        raise ContextError(
            f"flash_attention is auto, on, off or long, not {options.flash_attention!r}", hint=""
        )
    unknown = [name for name in options.rope if name not in ROPE_FIELDS]
    if unknown:
        raise ContextError(f"unknown rope options: {', '.join(unknown)}", hint="")
    scaling = options.rope.get("rope_scaling_type", "none")
    if scaling not in ROPE_SCALING:
        raise ContextError(f"rope_scaling_type {scaling!r} is not one of {', '.join(ROPE_SCALING)}", hint="")


def _attention(
    model: Model, options: ContextOptions, window: int, warnings: list[LoadWarning]
) -> tuple[str, str, fit.Attention]:
    """Cache types and flash attention, as the model kind allows them."""
    keys, values = options.cache_type_k, options.cache_type_v
    if model.is_hybrid or model.is_recurrent:
        if (keys, values) != ("f16", "f16"):
            text = f"hybrid and recurrent models keep an f16 cache: {keys}/{values} is not used"
            warnings.append(LoadWarning("cache_type_forced", text))
        if options.flash_attention in ("on", "long"):
            asked = options.flash_attention
            text = f"hybrid and recurrent models run without flash attention: `{asked}` is not used"
            warnings.append(LoadWarning("flash_attention_off", text))
        return "f16", "f16", fit.Attention(flash=False, side_context=False, n_ubatch=options.n_ubatch)
    if options.flash_attention == "off" and values not in ("f32", "f16", "bf16"):
        raise ContextError(
            f"cache_type_v {values} needs flash attention",
            hint="set flash_attention: on, or cache_type_v: f16",
        )
    if misfits := fit.cache_type_misfits(model.shape, keys, values):
        raise ContextError(misfits[0], hint="set cache_type_k and cache_type_v: f16")
    slow = sorted({name for name in (keys, values) if name not in FAST_ON_CPU})
    if slow and not (model.on_gpu and options.offload_kqv):
        text = f"cache type {', '.join(slow)} is several times slower than f16 on a CPU"
        warnings.append(LoadWarning("slow_cache_type", text))
    chosen = fit.attention(
        model.shape,
        options.flash_attention,
        context_window=window,
        n_ubatch=options.n_ubatch,
        cache_type_k=keys,
        cache_type_v=values,
        unified=options.unified,
        on_gpu=model.on_gpu,
        row_attention_window=_row_attention_window(model, plain={keys, values} == {"f16"}),
    )
    return keys, values, chosen


def _invariant(
    model: Model, options: ContextOptions, keys: str, values: str, chosen: fit.Attention
) -> fit.Attention:
    """Attention whose sums are the same in every pass; the rest is measured (`invariance`).

    Flash attention in tiles rounds differently from rows, and llama.cpp's own divides a row that is alone
    among the threads; long prompts in a second context differ from those that find it taken.
    """
    refused = {
        "kv_layout: unified": (options.unified, "sums follow the order of the pool's cells; use streams"),
        "a GPU": (model.on_gpu, "its kernels are chosen by the size of the batch; set n_gpu_layers: 0"),
        "a hybrid or recurrent model": (model.is_hybrid or model.is_recurrent, "its states are not compared"),
        "swa_full: false": (bool(model.n_swa) and not options.swa_full, "rows cannot run again; use true"),
    }
    for what, (applies, why) in refused.items():
        if applies:
            raise DeterminismError(f"deterministic: on cannot be kept with {what}: {why}")
    if not chosen.flash:
        return chosen._replace(side_context=False)
    if {keys, values} == {"f16"} and attends(model.shape.key_length, model.shape.value_length):
        return fit.Attention(
            flash=True, side_context=False, n_ubatch=min(chosen.n_ubatch, fit.ROW_ATTENTION_UBATCH_MAX)
        )
    if options.flash_attention == "on" or values not in ("f32", "f16", "bf16"):
        raise DeterminismError(
            "deterministic: on cannot be kept with llama.cpp's flash attention, whose sums follow the batch",
            hint="set flash_attention: auto and cache_type_v: f16, or deterministic: auto",
        )
    return fit.attention(
        model.shape,
        "off",
        context_window=options.context_window or min(model.n_ctx_train, WINDOW_DEFAULT_MAX),
        n_ubatch=options.n_ubatch,
    )


def _row_attention_window(model: Model, *, plain: bool) -> int:
    """On ARM flash attention row by row is faster: llama.cpp's up to 700 tokens, our own throughout."""
    if not half_precision():
        return 0
    ours = plain and attends(model.shape.key_length, model.shape.value_length)
    return sys.maxsize if ours else ROW_ATTENTION_WINDOW_MAX


def _check_memory(
    model: Model,
    options: ContextOptions,
    *,
    window: int,
    pool: int,
    keys: str,
    values: str,
    side_context: bool,
) -> None:
    """llama.cpp touches all of its cache at once: what cannot fit ends the process, not the call."""
    if model.on_gpu:
        return  # an allocation on a device fails with an answer
    slots = 1 if options.unified else options.n_seq_max
    try:
        need = fit.estimate(
            model.shape,
            weights_bytes=0,
            context_window=pool if options.unified else window,
            n_seq_max=slots,
            cache_type_k=keys,
            cache_type_v=values,
            n_ubatch=min(options.n_ubatch, options.n_batch),
            swa_full=options.swa_full,
            unified=options.unified,
            side_context=side_context,
        )
    except StrettoError as error:
        raise ContextError(error.message) from error
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    want = need.cache + need.state
    if want > have:
        raise ContextError(f"a cache of {want >> 20} MiB does not fit the {have >> 20} MiB of this machine")
