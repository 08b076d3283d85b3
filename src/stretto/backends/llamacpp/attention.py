"""The attention policy: which attention a context runs with, for a model, options and a machine.

Pure arithmetic over a `ModelShape`, without llama.cpp: the backend and `stretto estimate` ask the same
function, so that the memory that is budgeted is that of the configuration which runs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NamedTuple

from stretto.backends.llamacpp import tuning
from stretto.backends.llamacpp.options import ContextOptions
from stretto.errors import DeterminismError
from stretto.model_files import fit
from stretto.model_files.kind import ModelShape

TILE_ROWS = (
    64  # llama.cpp: from this many rows of a sequence in a pass, flash attention on a CPU works in tiles
)
UNQUANTIZED = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the choice depends on. `own_attention_heads`: head sizes for which our own kernel computes."""

    on_gpu: bool = False
    half_precision: bool = (
        False  # ARM with 16-bit arithmetic: its row kernels are faster than matrix products
    )
    own_attention_heads: tuple[int, ...] = ()


class Attention(NamedTuple):
    """How attention runs. `side_context_ubatch`: rows of a pass in the side context; 0: there is none."""

    flash: bool
    n_ubatch: int
    side_context_ubatch: int
    cache_type_k: str
    cache_type_v: str

    @property
    def side_context(self) -> bool:
        return self.side_context_ubatch > 0


def resolve(shape: ModelShape, options: ContextOptions, window: int, machine: Machine) -> Attention:
    """What `flash_attention: auto | on | off | long` comes to in a context of `window` tokens.

    `long`: flash attention only for long prompts, in a side context; where that cannot be, the same as `on`.
    `auto` means `long` as well, but on a GPU `on`, and on ARM flash attention for all rows, in passes that
    are too small for its tiles.
    """
    n_ubatch = min(options.n_ubatch, options.n_batch)
    if any(shape.recurrent):
        return Attention(False, n_ubatch, 0, "f16", "f16")
    keys, values = options.cache_type_k, options.cache_type_v
    asked = options.flash_attention
    without = Attention(False, n_ubatch, 0, keys, values)
    if asked == "off":
        return without
    chosen = _chosen(shape, options, window, machine)
    return _deterministic(shape, options, machine, chosen, without) if options.deterministic else chosen


def fit_options(
    options: ContextOptions, attention: Attention, *, snapshot_bytes: int = 0
) -> fit.EstimateOptions:
    """The same configuration in the words of the memory estimate."""
    return {
        "cache_type_k": attention.cache_type_k,
        "cache_type_v": attention.cache_type_v,
        "n_ubatch": attention.n_ubatch,
        "flash_attention": attention.flash,
        "side_context_ubatch": attention.side_context_ubatch,
        "swa_full": options.swa_full,
        "unified": options.unified,
        "pool_tokens": options.pool_tokens if options.unified else 0,
        "snapshot_bytes": snapshot_bytes,
    }


def _chosen(shape: ModelShape, options: ContextOptions, window: int, machine: Machine) -> Attention:
    keys, values = options.cache_type_k, options.cache_type_v
    n_ubatch = min(options.n_ubatch, options.n_batch)
    cells = fit.padded(window)
    score_rows = tuning.SCORES_BYTES_MAX // (4 * max(1, shape.heads) * cells) // TILE_ROWS * TILE_ROWS
    plain = {keys, values} <= {"f16", "f32"} and not any(shape.sliding) and not options.unified
    if options.flash_attention == "on" or machine.on_gpu or not plain or score_rows < TILE_ROWS:
        return Attention(True, n_ubatch, 0, keys, values)
    side = n_ubatch if _has_side_context(shape, options, window) else 0
    if options.flash_attention == "auto" and window <= _row_attention_window(shape, options, machine):
        return Attention(True, min(n_ubatch, tuning.ROW_ATTENTION_UBATCH_MAX), side, keys, values)
    return Attention(False, min(n_ubatch, score_rows), side, keys, values)


def _has_side_context(shape: ModelShape, options: ContextOptions, window: int) -> bool:
    if "side_context" in options.quirks_off or window < tuning.SIDE_CONTEXT_WINDOW_MIN:
        return False
    stream_bytes = fit.stream_bytes(shape, options.cache_type_k, options.cache_type_v, window)
    return stream_bytes <= tuning.SIDE_CONTEXT_CACHE_BYTES_MAX


def _row_attention_window(shape: ModelShape, options: ContextOptions, machine: Machine) -> int:
    """The longest window with row-by-row flash attention: on ARM llama.cpp's up to 4,096, our own any."""
    if not machine.half_precision or "row_attention" in options.quirks_off:
        return 0
    return sys.maxsize if _is_ours(shape, options, machine) else tuning.ROW_ATTENTION_WINDOW_MAX


def _is_ours(shape: ModelShape, options: ContextOptions, machine: Machine) -> bool:
    plain = {options.cache_type_k, options.cache_type_v} == {"f16"}
    return (
        plain and shape.key_length == shape.value_length and shape.key_length in machine.own_attention_heads
    )


def _deterministic(
    shape: ModelShape, options: ContextOptions, machine: Machine, chosen: Attention, without: Attention
) -> Attention:
    """Attention whose sums are the same in every pass; the rest is measured at load (`invariance`).

    Tiled flash attention rounds differently from row by row, llama.cpp's row kernel splits the context of a
    lone row among the threads, and whether a prompt runs in the side context depends on other prompts.
    """
    if not chosen.flash:
        return chosen._replace(side_context_ubatch=0)
    if _is_ours(shape, options, machine) and "row_attention" not in options.quirks_off:
        rows = min(chosen.n_ubatch, tuning.ROW_ATTENTION_UBATCH_MAX)
        return chosen._replace(n_ubatch=rows, side_context_ubatch=0)
    if options.flash_attention == "on" or options.cache_type_v not in UNQUANTIZED:
        raise DeterminismError(
            "deterministic: on cannot be kept with llama.cpp's flash attention, whose sums follow the batch",
            hint="set flash_attention: auto and cache_type_v: f16, or deterministic: auto",
        )
    return without
