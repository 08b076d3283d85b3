"""How much memory a model and its slots need, and what fits into the memory there is.

Pure arithmetic over a `ModelShape`. Two results side by side: the steps of the well-known rule of thumb (one
byte per element of a quantized cache, nothing but weights and cache), and what llama.cpp allocates (real row
sizes, padding, windows, recurrent states, compute and output buffers). Which attention runs is decided by the
backend (`backends/llamacpp/attention.py`) and comes in as options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, Unpack

from stretto.errors import ModelError
from stretto.model_files.kind import ModelShape
from stretto.model_files.tensor_types import BY_NAME, TensorType, row_bytes

CELLS_MULTIPLE = 256  # llama.cpp pads a cache to a multiple of this many tokens
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SEQUENCES_MAX = 256  # llama.cpp's LLAMA_MAX_SEQ
_THUMB_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # every quantized type counts as one byte


@dataclass(frozen=True, slots=True)
class ThumbSteps:
    """The rule of thumb, step by step, in bytes."""

    bytes_per_element: int
    kv_per_token_per_layer: int
    kv_per_sequence: int
    slot_memory: int
    total: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by use. `thumb` is the simple rule, the other fields are what llama.cpp allocates."""

    thumb: ThumbSteps
    weights: int
    cache: int  # keys and values of all slots
    state: int  # recurrent states of all slots
    compute: int  # the scratch memory of one pass
    output: int  # logits handed back
    snapshots: int  # host memory for preempted requests and cached prefixes
    projector: int  # weights of the encoder of pictures and sounds
    cells: int  # tokens that fit, of all slots
    cache_layers: tuple[int, ...] = ()  # keys, values and states of all slots, by layer
    warnings: tuple[str, ...] = ()
    draft: int = 0  # a draft model: its weights, KV and buffers
    adapters: int = 0  # as many as are kept in memory, the largest

    @property
    def device(self) -> int:
        """What must fit where the model computes: a GPU's memory, or the machine's."""
        computing = self.cache + self.state + self.compute + self.output
        return self.weights + self.projector + self.draft + self.adapters + computing

    @property
    def total(self) -> int:
        return self.device + self.snapshots


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits: each limit with everything else as asked; 0 if not even the smallest fits."""

    fits: bool
    free: int
    needed: int
    context_window_max: int
    n_seq_max_max: int


class EstimateOptions(TypedDict, total=False):
    """The configuration that runs: what `fit` passes on to `estimate`."""

    cache_type_k: str
    cache_type_v: str
    n_ubatch: int
    flash_attention: bool
    side_context_ubatch: int
    swa_full: bool
    unified: bool
    pool_tokens: int
    snapshot_bytes: int
    projector_bytes: int
    draft_bytes: int
    adapters_bytes: int


def estimate(
    shape: ModelShape,
    *,
    weights_bytes: int,
    context_window: int,
    n_seq_max: int = 4,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    n_ubatch: int = 512,
    flash_attention: bool = True,
    side_context_ubatch: int = 0,
    swa_full: bool = True,
    unified: bool = False,
    pool_tokens: int = 0,
    snapshot_bytes: int = 0,
    projector_bytes: int = 0,
    draft_bytes: int = 0,
    adapters_bytes: int = 0,
) -> Estimate:
    """Bytes for `n_seq_max` slots of `context_window` tokens each; unified: for a pool of `pool_tokens`.

    `side_context_ubatch`: rows of a pass in a second context of one slot, with flash attention; 0: none.
    """
    _check_ranges(context_window=context_window, n_seq_max=n_seq_max, n_ubatch=n_ubatch)
    key_type, value_type = _cache_type(cache_type_k), _cache_type(cache_type_v)
    streams = 1 if unified else n_seq_max
    cells = padded((pool_tokens if unified else 0) or context_window * n_seq_max // streams)
    window = shape.sliding_window * n_seq_max // streams
    window_cells = cells if swa_full else min(cells, padded(window + n_ubatch))
    rows = _layer_bytes(shape, key_type, value_type, cells, window_cells) if shape.causal else []
    streams_allocated = streams + bool(side_context_ubatch)
    states = shape.recurrent or (False,) * shape.layers
    compute = _compute(shape, cells, window_cells, n_ubatch, flash_attention=flash_attention)
    if side_context_ubatch:
        compute += _compute(shape, cells, window_cells, side_context_ubatch, flash_attention=True)
    return Estimate(
        thumb=_thumb(
            shape,
            weights_bytes,
            context_window,
            (pool_tokens if unified else 0) or context_window * n_seq_max,
            cache_type_k,
            cache_type_v,
        ),
        weights=weights_bytes,
        cache=streams_allocated * sum(rows),
        state=shape.recurrent_layers * shape.state_bytes * n_seq_max,
        compute=compute,
        output=4 * n_seq_max * (shape.vocabulary_size if shape.generates else shape.embedding_length),
        snapshots=snapshot_bytes,
        projector=projector_bytes,
        cells=streams * cells,
        cache_layers=tuple(
            streams_allocated * row + has_state * shape.state_bytes * n_seq_max
            for row, has_state in zip(rows, states, strict=False)
        ),
        warnings=_warnings(shape, key_type, value_type, context_window, flash_attention=flash_attention),
        draft=draft_bytes,
        adapters=adapters_bytes,
    )


def fit(
    shape: ModelShape,
    *,
    free_bytes: int,
    weights_bytes: int,
    context_window: int,
    n_seq_max: int = 4,
    on_gpu: bool = False,
    configure: Callable[[int], EstimateOptions] | None = None,
    fits: Callable[[Estimate], bool] | None = None,
    **options: Unpack[EstimateOptions],
) -> Fit:
    """Whether it fits, the largest window for these slots, and the most slots for this window.

    `on_gpu`: `free_bytes` are a GPU's, where snapshots take no room. `configure`: the options for a window,
    where they depend on it; the window that is found fits, and a larger one with other options may fit, too.
    `fits`: decides instead of `free_bytes`, where several devices share the model.
    """

    def estimated(window: int, slots: int) -> Estimate:
        chosen = configure(window) if configure is not None else options
        return estimate(shape, weights_bytes=weights_bytes, context_window=window, n_seq_max=slots, **chosen)

    def needed(found: Estimate) -> int:
        return found.device if on_gpu else found.total

    def holds(window: int, slots: int) -> bool:
        found = estimated(window, slots)
        return needed(found) <= free_bytes if fits is None else fits(found)

    pool_tokens = (configure(context_window) if configure is not None else options).get("pool_tokens")
    steps = max(1, shape.context_length // CELLS_MULTIPLE)
    blocks = _largest(steps, lambda n: holds(n * CELLS_MULTIPLE, n_seq_max))
    slots = _largest(SEQUENCES_MAX, lambda n: holds(context_window, n))
    return Fit(
        fits=holds(context_window, n_seq_max),
        free=free_bytes,
        needed=needed(estimated(context_window, n_seq_max)),
        context_window_max=min(blocks * CELLS_MULTIPLE, pool_tokens or 1 << 62, shape.context_length),
        n_seq_max_max=slots,
    )


def steps_text(
    result: Estimate, shape: ModelShape, *, context_window: int, n_seq_max: int
) -> tuple[str, ...]:
    """The rule of thumb as lines, with the figures filled in."""
    thumb = result.thumb
    heads = _mean_kv_heads(shape)
    gigabytes = 1e9
    slots = f"Slot_Memory = {n_seq_max} × {thumb.kv_per_sequence / gigabytes:.1f} GB"
    if thumb.slot_memory != n_seq_max * thumb.kv_per_sequence:  # one pool, of n_ctx tokens
        token = shape.layers * thumb.kv_per_token_per_layer
        slots = (
            f"KV_Pool = {thumb.slot_memory // token:,} × {shape.layers} × {thumb.kv_per_token_per_layer:,}"
        )
    return (
        f"KV_Per_Token_Per_Layer = {heads} × ({shape.key_length} + {shape.value_length})"
        f" × {thumb.bytes_per_element} = {thumb.kv_per_token_per_layer:,} bytes",
        f"KV_Per_Sequence = {context_window:,} × {shape.layers} × {thumb.kv_per_token_per_layer:,}"
        f" = ~{thumb.kv_per_sequence / gigabytes:.1f} GB",
        f"{slots} = ~{thumb.slot_memory / gigabytes:.1f} GB",
        f"Total = {result.weights / gigabytes:.1f} GB + {thumb.slot_memory / gigabytes:.1f} GB"
        f" = ~{thumb.total / gigabytes:.1f} GB",
    )


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


def _check_ranges(**values: int) -> None:
    for name, value in values.items():
        limit = SEQUENCES_MAX if name == "n_seq_max" else 1 << 28
        if not 1 <= value <= limit:
            raise ModelError(f"{name} is {value}", hint=f"choose {name} from 1 to {limit}")


def _cache_type(name: str) -> TensorType:
    if name not in CACHE_TYPES:
        raise ModelError(f"{name!r} is not a cache type", hint=f"one of {', '.join(CACHE_TYPES)}")
    return BY_NAME[name]


def padded(tokens: int) -> int:
    """Cells that llama.cpp allocates for this many tokens."""
    return -(-tokens // CELLS_MULTIPLE) * CELLS_MULTIPLE


def stream_bytes(shape: ModelShape, cache_type_k: str, cache_type_v: str, window: int) -> int:
    """The KV cache of one slot."""
    cells = padded(window)
    return sum(_layer_bytes(shape, _cache_type(cache_type_k), _cache_type(cache_type_v), cells, cells))


def _layer_bytes(
    shape: ModelShape, keys: TensorType, values: TensorType, cells: int, window_cells: int
) -> list[int]:
    """One stream of the cache, by layer: a row of keys and one of values for every cell."""
    sliding = shape.sliding or (False,) * shape.layers
    found = []
    for heads, slides in zip(shape.kv_heads, sliding, strict=True):
        row = row_bytes(keys, heads * shape.key_length) + row_bytes(values, heads * shape.value_length)
        found.append(row * (window_cells if slides else cells))
    return found


def _mean_kv_heads(shape: ModelShape) -> int:
    return sum(shape.kv_heads) // len(shape.kv_heads)


def _thumb(
    shape: ModelShape, weights: int, context_window: int, tokens: int, key_type: str, value_type: str
) -> ThumbSteps:
    """`tokens`: of all slots together."""
    element = max(_THUMB_BYTES.get(key_type, 1), _THUMB_BYTES.get(value_type, 1))
    per_token = _mean_kv_heads(shape) * (shape.key_length + shape.value_length) * element
    per_sequence = context_window * shape.layers * per_token
    slots = tokens * shape.layers * per_token
    return ThumbSteps(element, per_token, per_sequence, slots, weights + slots)


def _compute(
    shape: ModelShape, cells: int, window_cells: int, n_ubatch: int, *, flash_attention: bool
) -> int:
    """The peak of one pass: logits, feed-forward or attention, whichever is largest.

    llama.cpp reuses the memory of finished steps, so that the parts do not add up. Checked against its own
    figures: within 5 % for SmolLM2 and the tiny models, with and without flash attention.
    """
    width = shape.embedding_length
    logits = (shape.vocabulary_size if shape.generates else 0) + 2 * width
    experts = shape.expert_used_count * (2 * shape.expert_feed_forward_length + width)
    feed_forward = 2 * shape.feed_forward_length + experts + 3 * width
    projected = shape.heads * (shape.key_length + shape.value_length)
    masked = cells + (window_cells if any(shape.sliding) else 0)
    score_row = 2 * masked if flash_attention else 4 * (shape.heads * cells + masked)
    attention = (score_row if any(shape.kv_heads) else 0) + 4 * (projected + 3 * width)
    return n_ubatch * max(4 * logits, 4 * feed_forward, attention)


def _warnings(
    shape: ModelShape, keys: TensorType, values: TensorType, context_window: int, *, flash_attention: bool
) -> tuple[str, ...]:
    found = []
    if context_window > shape.context_length:
        found.append(f"context_window {context_window} is beyond the model's {shape.context_length}")
    found += _misfits(shape, keys, values)
    if values.block_elements > 1 and not flash_attention:
        found.append("a quantized cache_type_v needs flash attention")
    if any(shape.recurrent) and max(keys.block_elements, values.block_elements) > 1:
        found.append("a model with recurrent layers keeps an f16 cache")
    return tuple(dict.fromkeys(found))


def cache_type_misfits(shape: ModelShape, cache_type_k: str, cache_type_v: str) -> list[str]:
    """Why llama.cpp would refuse a cache of these types for this model."""
    return _misfits(shape, _cache_type(cache_type_k), _cache_type(cache_type_v))


def _misfits(shape: ModelShape, keys: TensorType, values: TensorType) -> list[str]:
    lengths = ((keys, shape.key_length), (values, shape.value_length))
    return [
        f"a {kind.name} cache needs heads in multiples of {kind.block_elements}; this model's have {length}"
        for kind, length in lengths
        if length % kind.block_elements
    ]


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest n from 1 to limit for which `holds`, or 0; if it holds for n, it holds for less."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
