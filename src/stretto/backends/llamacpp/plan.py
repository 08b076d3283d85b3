"""Options resolved for one model: what llama.cpp is asked for, with warnings.

Knows which options contradict each other, which a model kind forces, and which would end the process. Calls
nothing in C. Which attention runs is decided in `attention`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.backends.llamacpp import attention as policy
from stretto.backends.llamacpp.attention import Attention, Machine
from stretto.backends.llamacpp.model import LoadWarning, Model
from stretto.backends.llamacpp.native.cpu_limits import cores
from stretto.backends.llamacpp.options import ROPE_FIELDS, ROPE_SCALING, ContextOptions
from stretto.errors import ContextError, DeterminismError, StrettoError
from stretto.model_files import fit

OUTPUTS_MIN = 32  # rows of a pass with logits: prompt logprobs are measured this many at a time
OUTPUTS_MULTIPLE = 16  # see `_outputs_max`
DETERMINISM_NEEDS = frozenset({"batch_invariant_ubatches", "separate_calls"})
FAST_ON_CPU = ("f16", "f32")  # on x86 q8_0 took 2.8 times and bf16 7 times as long as f16


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
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
    row_attention: bool  # flash attention that gives a row the same bits whatever rows are beside it
    side_context: bool  # long prompts run in a second context, with flash attention
    media_pass_rows: int  # of a picture's pass in the second context; 0: pictures run with the slots
    unified: bool
    swa_full: bool
    n_threads: int
    n_threads_batch: int
    offload_kqv: bool
    op_offload: bool
    rope: Mapping[str, float | str]
    warnings: tuple[LoadWarning, ...] = ()


def resolve(
    model: Model,
    options: ContextOptions,
    machine: Machine | None = None,
    measured: policy.Measured = policy.UNMEASURED,
) -> ContextPlan:
    """Options for this model, or a ContextError that names the two that contradict each other.

    `machine`: another one than this, for tests. `measured`: which attention is faster here.
    """
    machine = machine or model.machine
    _check(model, options)
    warnings = list(model.warnings)
    threads = options.n_threads or cores()
    window = options.window(model.n_ctx_train)
    _check_kind(model, options, machine, warnings)
    attention = policy.resolve(model.shape, options, window, machine, measured)
    if options.context_window > model.n_ctx_train and not options.rope:
        text = (
            f"context_window {options.context_window} is more than the {model.n_ctx_train} tokens "
            "the model was trained on"
        )
        warnings.append(LoadWarning("window_beyond_training", text))
    pool = (options.pool_tokens or window * options.n_seq_max) if options.unified else 0
    _check_memory(model, options, attention, window=window, machine=machine)
    return ContextPlan(
        n_ctx=pool or window * options.n_seq_max,
        window=window,
        n_seq_max=options.n_seq_max,
        n_batch=options.n_batch,
        n_ubatch=attention.n_ubatch,
        n_outputs_max=_outputs_max(options),
        cache_type_k=attention.cache_type_k,
        cache_type_v=attention.cache_type_v,
        flash_attention=attention.flash,
        row_attention=attention.by_row,
        side_context=attention.side_context,
        media_pass_rows=policy.media_pass_rows(model.shape, options, window, attention),
        unified=options.unified,
        swa_full=options.swa_full,
        n_threads=threads,
        n_threads_batch=options.n_threads_batch or threads,
        offload_kqv=options.offload_kqv,
        op_offload=options.op_offload,
        rope=options.rope,
        warnings=tuple(warnings),
    )


def _outputs_max(options: ContextOptions) -> int:
    """Rows of a pass with logits, a multiple of sixteen.

    llama.cpp places a list of their numbers (of 4 bytes each) before the tensors of a pass, all of which
    begin at multiples of 32 bytes. Where these are not multiples of 64, rows cross cache lines, and with AMX
    prompts take 1.3 to 1.4 times as long.
    """
    wanted = max(OUTPUTS_MIN, options.n_seq_max * (1 + options.drafts_max))
    return min(options.n_batch, -(-wanted // OUTPUTS_MULTIPLE) * OUTPUTS_MULTIPLE)


def _check(model: Model, options: ContextOptions) -> None:
    """Values that no model takes."""
    if not model.shape.generates:
        raise ContextError(
            f"{model.file.path} is an {model.shape.kind.value} model: it does not generate text",
            hint="name a language model; embedding models serve /v1/embeddings",
        )
    if not 1 <= options.n_seq_max <= fit.SEQUENCES_MAX:
        raise ContextError(f"n_seq_max is {options.n_seq_max}, not 1 to {fit.SEQUENCES_MAX}")
    if options.n_batch < options.n_seq_max:
        raise ContextError(f"n_batch ({options.n_batch}) is less than n_seq_max ({options.n_seq_max})")
    if options.n_ubatch < 1 or options.drafts_max < 0 or options.context_window < 0:
        raise ContextError("n_ubatch starts at 1, drafts_max and context_window at 0")
    for name in (options.cache_type_k, options.cache_type_v):
        if name not in fit.CACHE_TYPES:
            raise ContextError(
                f"cache type {name!r} is not one of {', '.join(fit.CACHE_TYPES)}", hint="use f16"
            )
    if options.flash_attention not in ("auto", "on", "off", "long", "rows"):
        raise ContextError(
            f"flash_attention is auto, on, off, long or rows, not {options.flash_attention!r}", hint=""
        )
    unknown = [name for name in options.rope if name not in ROPE_FIELDS]
    if unknown:
        raise ContextError(f"unknown rope options: {', '.join(unknown)}", hint="")
    scaling = options.rope.get("rope_scaling_type", "none")
    if scaling not in ROPE_SCALING:
        raise ContextError(f"rope_scaling_type {scaling!r} is not one of {', '.join(ROPE_SCALING)}", hint="")


def _check_kind(model: Model, options: ContextOptions, machine: Machine, warnings: list[LoadWarning]) -> None:
    """Options that this kind of model refuses, ignores or runs slowly with."""
    keys, values = options.cache_type_k, options.cache_type_v
    stateful = model.is_hybrid or model.is_recurrent
    if options.pool_tokens and (not options.unified or model.is_recurrent):
        raise ContextError(
            "n_ctx is the size of a pool that all slots share, and "
            + ("a recurrent model keeps a state for each slot" if options.unified else "streams have none"),
            hint="leave n_ctx out" if options.unified else "set kv_layout: unified",
        )
    if options.deterministic:
        _check_deterministic(model, options, machine)
    if stateful:
        if (keys, values) != ("f16", "f16"):
            text = f"hybrid and recurrent models keep an f16 cache: {keys}/{values} is not used"
            warnings.append(LoadWarning("cache_type_forced", text))
        if options.flash_attention in ("on", "long", "rows"):
            asked = options.flash_attention
            text = f"hybrid and recurrent models run without flash attention: `{asked}` is not used"
            warnings.append(LoadWarning("flash_attention_off", text))
        return
    if options.flash_attention == "off" and values not in policy.UNQUANTIZED:
        raise ContextError(
            f"cache_type_v {values} needs flash attention",
            hint="set flash_attention: on, or cache_type_v: f16",
        )
    if misfits := fit.cache_type_misfits(model.shape, keys, values):
        raise ContextError(misfits[0], hint="set cache_type_k and cache_type_v: f16")
    slow = sorted({name for name in (keys, values) if name not in FAST_ON_CPU})
    if slow and not (machine.on_gpu and options.offload_kqv):
        text = f"cache type {', '.join(slow)} is several times slower than f16 on a CPU"
        warnings.append(LoadWarning("slow_cache_type", text))


def _check_deterministic(model: Model, options: ContextOptions, machine: Machine) -> None:
    off = ", ".join(sorted(DETERMINISM_NEEDS & options.quirks_off))
    refused = {
        "kv_layout: unified": (options.unified, "sums follow the order of the pool's cells; use streams"),
        "a GPU": (machine.on_gpu, "its kernels are chosen by the size of the batch; set n_gpu_layers: 0"),
        "a hybrid or recurrent model": (model.is_hybrid or model.is_recurrent, "its states are not compared"),
        "swa_full: false": (bool(model.n_swa) and not options.swa_full, "rows cannot run again; use true"),
        f"quirks_off: {off}": (bool(off), "output would depend on the batch; leave it on"),
    }
    for what, (applies, why) in refused.items():
        if applies:
            raise DeterminismError(f"deterministic: on cannot be kept with {what}: {why}")


def _check_memory(
    model: Model, options: ContextOptions, attention: Attention, *, window: int, machine: Machine
) -> None:
    """llama.cpp touches all of its cache at once: what cannot fit ends the process, not the call."""
    if machine.on_gpu:
        return  # an allocation on a device fails with an error
    try:
        need = fit.estimate(
            model.shape,
            weights_bytes=0,
            context_window=window,
            n_seq_max=options.n_seq_max,
            **policy.fit_options(options, attention),
        )
    except StrettoError as error:
        raise ContextError(error.message) from error
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    want = need.cache + need.state
    if want > have:
        raise ContextError(f"a cache of {want >> 20} MiB does not fit the {have >> 20} MiB of this machine")
