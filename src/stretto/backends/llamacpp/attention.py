"""The attention policy: which attention a context may run with, for a model, options and a machine.

Pure arithmetic over a `ModelShape`, without llama.cpp: the backend and `stretto estimate` ask the same
functions, so that the memory that is budgeted covers the configuration which runs. With `auto` there are
several candidates, all batch-invariant; which one is fastest is measured at load (`choices`).
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
PLAIN, ROWS, TILES = "plain", "rows", "tiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the candidates depend on. `own_attention_heads`: head sizes for which our own kernel computes,

    with up to `own_attention_rows_max` rows of a sequence in a pass.
    """

    on_gpu: bool = False
    half_precision: bool = False  # ARM with 16-bit arithmetic: row kernels are expected to be faster
    own_attention_heads: tuple[int, ...] = ()
    own_attention_rows_max: int = TILE_ROWS - 1


class Attention(NamedTuple):
    """How attention runs. `side_context_ubatch`: rows of a pass in the side context; 0: there is none.

    `by_row`: flash attention gives a row the same bits whatever rows of its sequence are beside it.
    """

    flash: bool
    n_ubatch: int
    side_context_ubatch: int
    cache_type_k: str
    cache_type_v: str
    by_row: bool = False

    @property
    def side_context(self) -> bool:
        return self.side_context_ubatch > 0

    @property
    def slots(self) -> str:
        """The attention of slots: `plain` (matrix products), `rows` or `tiles` (flash attention)."""
        if not self.flash:
            return PLAIN
        return ROWS if self.by_row else TILES


class Measured(NamedTuple):
    """What was measured to be faster; empty and None where nothing was."""

    slots: str = ""  # `Attention.slots`
    side_context: bool | None = None

    def prefers(self, one: Attention) -> bool:
        return self.slots in ("", one.slots) and self.side_context in (None, one.side_context)


UNMEASURED = Measured()


def resolve(
    shape: ModelShape, options: ContextOptions, window: int, machine: Machine, measured: Measured = UNMEASURED
) -> Attention:
    """What `flash_attention` comes to in a context of `window` tokens, with what was measured for `auto`."""
    found = candidates(shape, options, window, machine)
    return next((one for one in found if measured.prefers(one)), found[0])


def candidates(
    shape: ModelShape, options: ContextOptions, window: int, machine: Machine
) -> tuple[Attention, ...]:
    """What may run. The first is expected to be the fastest: it is taken where nothing was measured.

    `long`: flash attention only for long prompts, in a side context. `rows`: for all rows, in passes that are
    too small for llama.cpp's tiles, and long prompts in a side context. `auto`: either, with or without a
    side context; with speculation only `rows`, because without flash attention the rows that verify drafts
    round differently from single ones. Where these cannot be (on a GPU, with a quantized cache, a sliding
    window or a pool), as `on`.
    """
    n_ubatch = min(options.n_ubatch, options.n_batch)
    if any(shape.recurrent):
        return (Attention(False, n_ubatch, 0, "f16", "f16"),)
    keys, values = options.cache_type_k, options.cache_type_v
    if options.flash_attention == "off":
        return (Attention(False, n_ubatch, 0, keys, values),)
    found = _possible(shape, options, window, machine)
    return _deterministic(shape, options, machine, found) if options.deterministic else found


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


def media_pass_rows(shape: ModelShape, options: ContextOptions, window: int, attention: Attention) -> int:
    """Rows of a pass of a picture that pauses between layers; 0: pictures run in the slots' context.

    Only where a row has the same bits in any pass, so that it does not matter where it runs. A layer takes as
    long as `MEDIA_ROWS_PER_LAYER` rows of the whole model.
    """
    plain = not options.unified and not any((*shape.recurrent, *shape.sliding))
    if not plain or not attention.by_row or options.deterministic or "side_context" in options.quirks_off:
        return 0
    rows = min(attention.n_ubatch, tuning.MEDIA_ROWS_PER_LAYER * shape.layers)
    fits = _side_cache_fits(shape, options, window)
    return rows if fits and rows >= tuning.SIDE_CONTEXT_ROWS_MIN else 0


def _possible(
    shape: ModelShape, options: ContextOptions, window: int, machine: Machine
) -> tuple[Attention, ...]:
    keys, values = options.cache_type_k, options.cache_type_v
    asked, n_ubatch = options.flash_attention, min(options.n_ubatch, options.n_batch)
    cells = fit.padded(window)
    score_rows = tuning.SCORES_BYTES_MAX // (4 * max(1, shape.heads) * cells) // TILE_ROWS * TILE_ROWS
    plain = {keys, values} <= {"f16", "f32"} and not any(shape.sliding) and not options.unified
    if asked == "on" or machine.on_gpu or not plain or score_rows < TILE_ROWS:
        by_row = not machine.on_gpu and n_ubatch <= _rows_max(shape, options, machine)
        return (Attention(True, n_ubatch, 0, keys, values, by_row),)
    side = n_ubatch if _has_side_context(shape, options, window) else 0
    without = Attention(False, min(n_ubatch, score_rows), side, keys, values)
    rows = Attention(True, _row_ubatch(shape, options, machine), side, keys, values, by_row=True)
    if asked != "auto":
        return (rows if asked == "rows" else without,)
    if "row_attention" in options.quirks_off:
        return _with_and_without_side(without)
    if options.drafts_max:
        return _with_and_without_side(rows)
    expected = (
        (rows, without) if window <= _row_attention_window(shape, options, machine) else (without, rows)
    )
    return tuple(one for kind in expected for one in _with_and_without_side(kind))


def _with_and_without_side(kind: Attention) -> tuple[Attention, ...]:
    return (kind, kind._replace(side_context_ubatch=0)) if kind.side_context else (kind,)


def _has_side_context(shape: ModelShape, options: ContextOptions, window: int) -> bool:
    if "side_context" in options.quirks_off or window < tuning.SIDE_CONTEXT_WINDOW_MIN:
        return False
    return _side_cache_fits(shape, options, window)


def _side_cache_fits(shape: ModelShape, options: ContextOptions, window: int) -> bool:
    stream_bytes = fit.stream_bytes(shape, options.cache_type_k, options.cache_type_v, window)
    return stream_bytes <= tuning.SIDE_CONTEXT_CACHE_BYTES_MAX


def _row_attention_window(shape: ModelShape, options: ContextOptions, machine: Machine) -> int:
    """The longest window in which flash attention row by row is expected to be faster, before measuring."""
    if _is_ours(shape, options, machine):
        return sys.maxsize
    return tuning.ROW_ATTENTION_WINDOW_MAX if machine.half_precision else 0


def _row_ubatch(shape: ModelShape, options: ContextOptions, machine: Machine) -> int:
    """Rows of a pass, for flash attention row by row."""
    n_ubatch = min(options.n_ubatch, options.n_batch)
    fits = n_ubatch <= _rows_max(shape, options, machine)
    return n_ubatch if fits else min(n_ubatch, tuning.ROW_ATTENTION_UBATCH_MAX)


def _rows_max(shape: ModelShape, options: ContextOptions, machine: Machine) -> int:
    """Up to how many rows of a sequence in a pass flash attention runs row by row."""
    ours = machine.own_attention_rows_max if _is_ours(shape, options, machine) else 0
    return max(TILE_ROWS - 1, ours)


def _is_ours(shape: ModelShape, options: ContextOptions, machine: Machine) -> bool:
    plain = {options.cache_type_k, options.cache_type_v} == {"f16"}
    return (
        plain and shape.key_length == shape.value_length and shape.key_length in machine.own_attention_heads
    )


def _deterministic(
    shape: ModelShape, options: ContextOptions, machine: Machine, found: tuple[Attention, ...]
) -> tuple[Attention, ...]:
    """Attention whose sums are the same in every pass; the rest is measured at load (`invariance`).

    Only the expected one: were it chosen by time, text could differ from one start to the next.

    Tiled flash attention rounds differently from row by row, llama.cpp's row kernel splits the context of a
    lone row among the threads, and whether a prompt runs in the side context depends on other prompts.
    """
    by_row = _is_ours(shape, options, machine) and "row_attention" not in options.quirks_off
    for one in found:
        alone = one._replace(side_context_ubatch=0)
        if not one.flash:
            return (alone,)
        if by_row:
            return (alone._replace(n_ubatch=_row_ubatch(shape, options, machine), by_row=True),)
    if options.flash_attention in ("on", "rows") or options.cache_type_v not in UNQUANTIZED:
        raise DeterminismError(
            "deterministic: on cannot be kept with llama.cpp's flash attention, whose sums follow the batch",
            hint="set flash_attention: auto and cache_type_v: f16, or deterministic: auto",
        )
    n_ubatch = min(options.n_ubatch, options.n_batch)
    return (Attention(False, n_ubatch, 0, options.cache_type_k, options.cache_type_v),)
