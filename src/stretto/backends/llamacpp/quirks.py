"""How llama.cpp behaves in this context on this machine, and how we answer: one value, resolved once at load.

Every decision that depends on the machine, the model kind or a measurement is a field here; nothing else
derives it again. Each answer can be switched off (`quirks_off`, `kernels`). `stretto doctor MODEL` prints
them; docs/design/quirks.md explains each.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.backends.llamacpp.calibration import ContextMeasures
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.native.library import batch_invariant_rows_min
from stretto.core.capabilities import Rewind


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """The first three are facts; the others are answers, and switchable."""

    batch_invariant_rows_min: int  # rows of a prompt in a ubatch from which rounding does not depend on them
    tiled_attention: bool  # flash attention on a CPU in tiles of 64 rows: shorter chunks cost more per row
    own_kernels: str  # why our own kernels do not compute; empty: they do
    row_attention: bool  # flash attention row by row: our own, or in passes too small for llama.cpp's tiles
    side_context: bool  # long prompts run in a second context, in passes that pause between layers
    separate_calls: bool  # decode rows and prompt chunks run in calls of their own, in alternating ticks
    batch_invariant_ubatches: bool  # calls are split so that each ubatch has batch_invariant_rows_min rows
    tile_fill: bool  # chunks shorter than a tile recompute known rows where that is faster
    pad_gaps: bool  # a missing sequence id between decode rows gets a padding row
    pad_to_four: bool  # a decode pass of 4n + 3 rows gets a padding row
    pad_lone_row: bool  # a decode row alone in its pass gets a padding row

    @property
    def pads(self) -> bool:
        return self.pad_gaps or self.pad_to_four or self.pad_lone_row


def resolve(context: Context, measures: ContextMeasures, rewind: Rewind, *, side_context: bool) -> Quirks:
    """`side_context`: whether one was opened, and its trial succeeded."""
    on = _On(context.options.quirks_off)
    row_attention = _is_row_attention(context)
    tiled = _is_tiled(context)
    recomputes = _recomputes(context, rewind)
    one_call = not measures.two_calls or (context.plan.unified and rewind is not Rewind.ANY)
    invariant = recomputes and not tiled and on("batch_invariant_ubatches") and on("separate_calls")
    pads = recomputes and not tiled and not context.model.n_swa and not context.model.has_mrope
    return Quirks(
        batch_invariant_rows_min=batch_invariant_rows_min(),
        tiled_attention=tiled,
        own_kernels=context.model.own_kernels,
        row_attention=row_attention,
        side_context=side_context,
        separate_calls=on("separate_calls") and (invariant or not one_call),
        batch_invariant_ubatches=invariant,
        tile_fill=on("tile_fill") and recomputes and tiled,
        pad_gaps=on("pad_gaps") and pads,
        pad_to_four=on("pad_to_four") and pads and measures.four_rows_faster,
        pad_lone_row=on("pad_lone_row") and pads and row_attention and not measures.lone_row_invariant,
    )


def needs_separate_calls(context: Context, rewind: Rewind) -> bool:
    """Whether decode rows and chunks run apart whatever is measured: only so are chunks batch-invariant."""
    off = {"batch_invariant_ubatches", "separate_calls"} & context.options.quirks_off
    return _recomputes(context, rewind) and not _is_tiled(context) and not off


class _On:
    def __init__(self, off: frozenset[str]) -> None:
        self._off = off

    def __call__(self, name: str) -> bool:
        return name not in self._off


def _is_row_attention(context: Context) -> bool:
    return context.flash_attention and context.plan.row_attention


def _is_tiled(context: Context) -> bool:
    return context.flash_attention and not context.model.on_gpu and not context.plan.row_attention


def _recomputes(context: Context, rewind: Rewind) -> bool:
    """Whether a sequence can be trimmed so that known rows run again: not in a pool, not on a GPU."""
    pooled = context.plan.unified and not context.model.is_recurrent
    return rewind is Rewind.ANY and not pooled and not context.model.on_gpu
