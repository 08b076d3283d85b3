"""What a llama.cpp context can do with its memory, in the core's words. Found by asking and measuring.

memory                       rewind       share    pool
attention, streams           ANY          COPY     –
attention, unified           ANY          RANGE    cells
sliding window, small cache  WINDOW       as above; in a pool also with swa_full
hybrid                       CHECKPOINT   as above (whole states only)
recurrent                    CHECKPOINT   COPY     – (a state per sequence, no cells)
"""

from __future__ import annotations

from itertools import pairwise

from stretto.backends.llamacpp.calibration import Measures
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.options import CELLS_QUANTUM, TILE_ROWS
from stretto.core.capabilities import Capabilities, Parts, Rewind, Share
from stretto.model_files.fit import ROW_ATTENTION_UBATCH_MAX

CHUNK_MULTIPLE_TILED = TILE_ROWS  # 63 rows cost twice as much
CHUNK_MULTIPLE_CPU = 16  # fewer rows cost a CPU nearly as much as these
CHUNK_MULTIPLE_SIDE_CONTEXT = 32  # about two layers of a pass of 512 rows (see `side_context`)
CHUNK_MULTIPLE_ROW_ATTENTION = (
    14  # a quarter of a pass: with a third, 38 rows of a prompt were often cut in two
)
EFFICIENT_SIDE_CONTEXT = 2  # quanta: more save decode passes, fewer shorten the streams' gaps


def rewind_of(context: Context, measures: Measures) -> tuple[Rewind, int]:
    """How a sequence may be shortened, and by how many tokens for certain where a window slides."""
    model = context.model
    if model.is_hybrid or model.is_recurrent or not measures.can_trim:
        return Rewind.CHECKPOINT, 0
    if model.n_swa and (not context.plan.swa_full or context.plan.unified):
        return Rewind.WINDOW, _intact_tail(context)
    return Rewind.ANY, 0


def _intact_tail(context: Context) -> int:
    """Cells beyond the window that a stream overwrites last.

    In a shared pool anybody's rows overwrite them, with swa_full too: nothing behind the window is certain.
    """
    if context.plan.unified:
        return 0
    wanted = context.model.n_swa + context.n_ubatch
    cells = -(-wanted // CELLS_QUANTUM) * CELLS_QUANTUM
    return max(0, min(cells, context.n_ctx_seq) - context.model.n_swa)


def tiles(rows: int, heads: int, threads: int) -> int:
    """Tiles that flash attention computes for a chunk of one sequence.

    The rows of all heads are dealt out in four parts a thread; a part's border cuts a tile in two, and either
    half costs as much as the whole.
    """
    total = rows * heads
    part = -(-total // (4 * threads)) if threads > 1 else total
    borders = set(range(0, total, part)) | {head * rows for head in range(heads)} | {total}
    ends = sorted(borders)
    return sum(-(-(end - begin) // CHUNK_MULTIPLE_TILED) for begin, end in pairwise(ends))


def efficient_quanta(heads: int, threads: int) -> int:
    """Two where that saves a fifth of the tiles: with nine heads and two threads it saves a quarter."""
    one, two = (tiles(n * CHUNK_MULTIPLE_TILED, heads, threads) for n in (1, 2))
    return 2 if two <= 0.8 * 2 * one else 1


def _quanta(context: Context, measures: Measures, *, tiled: bool, side_context: bool) -> tuple[int, int]:
    """Rows of a quantum, and how many quanta are efficient."""
    if context.model.on_gpu:
        return 1, 1
    if context.row_attention:
        return CHUNK_MULTIPLE_ROW_ATTENTION, ROW_ATTENTION_UBATCH_MAX // CHUNK_MULTIPLE_ROW_ATTENTION
    if side_context:
        return CHUNK_MULTIPLE_SIDE_CONTEXT, EFFICIENT_SIDE_CONTEXT
    if not tiled:
        return CHUNK_MULTIPLE_CPU, CHUNK_MULTIPLE_TILED // CHUNK_MULTIPLE_CPU
    threads = measures.n_threads or context.plan.n_threads
    return CHUNK_MULTIPLE_TILED, efficient_quanta(context.model.n_head, threads)


def _parts(*, tiled: bool, redoes: bool) -> Parts:
    """The tiled kernel begins at a quantum; where rows can be done again, a part is filled up to one."""
    if not tiled:
        return Parts.EVEN
    return Parts.WHOLE if redoes else Parts.DEAR


def capabilities_of(
    context: Context,
    measures: Measures,
    *,
    side_context: bool = False,
    one_call: bool = False,
    batch_invariant: bool = True,
) -> Capabilities:
    model = context.model
    rewind, tokens = rewind_of(context, measures)
    pooled = context.plan.unified and not model.is_recurrent
    tiled = context.flash_attention and not context.row_attention and not model.on_gpu
    one_pass = not context.flash_attention and not model.on_gpu  # for a chunk, see `ubatches`
    redoes = not pooled and rewind is Rewind.ANY
    quantum, efficient = _quanta(context, measures, tiled=tiled, side_context=side_context)
    return Capabilities(
        rewind=rewind,
        rewind_tokens=tokens,
        share=Share.RANGE if pooled else Share.COPY,
        share_from_running=True,
        snapshots=True,
        sequences_max=context.n_seq_max,
        window=context.window,
        pages=context.pool_tokens if pooled else 0,
        bytes_per_token=measures.bytes_per_token,
        state_bytes=measures.state_bytes,
        copy_bytes_per_s=measures.copy_bytes_per_s,
        snapshot_bytes_per_s=measures.snapshot_bytes_per_s,
        rows_max=context.n_batch,
        chunk_max=context.n_ubatch if one_pass else context.n_batch,
        outputs_max=context.outputs_max,
        measured_max=context.outputs_max,
        chunk_multiple=quantum,
        parts=_parts(tiled=tiled, redoes=redoes),
        efficient_quanta=efficient,
        contiguous=not pooled,
        mixed_batches=one_call and (tiled or model.on_gpu or not redoes),  # see `calls`
        equal_spans=not context.plan.unified or model.is_hybrid or model.is_recurrent,
        batch_invariant=batch_invariant,
        vocab=context.vocab,
    )
