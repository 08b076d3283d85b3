"""What a llama.cpp context can do with its memory, as the core's capabilities: asked and measured.

memory                       rewind       share    pool
attention, streams           ANY          COPY     –
attention, unified           ANY          RANGE    cells
sliding window, small cache  WINDOW       as above; in a pool also with swa_full
hybrid                       CHECKPOINT   as above (whole states only)
recurrent                    CHECKPOINT   COPY     – (a state per sequence, no cells)
"""

from __future__ import annotations

from itertools import pairwise

from stretto.backends.llamacpp import tuning
from stretto.backends.llamacpp.attention import TILE_ROWS
from stretto.backends.llamacpp.calibration import ContextMeasures
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.quirks import Quirks
from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.model_files.fit import padded


def rewind_of(context: Context, measures: ContextMeasures) -> tuple[Rewind, int]:
    """How a sequence may be trimmed, and by how many tokens at least with a sliding window."""
    model = context.model
    if model.is_hybrid or model.is_recurrent or not measures.can_trim:
        return Rewind.CHECKPOINT, 0
    if model.n_swa and (not context.plan.swa_full or context.plan.unified):
        return Rewind.WINDOW, _intact_tail(context)
    return Rewind.ANY, 0


def _intact_tail(context: Context) -> int:
    """Cells beyond the window that a stream overwrites last.

    In a shared pool rows of any sequence overwrite them, with swa_full too: nothing beyond it is certain.
    """
    if context.plan.unified:
        return 0
    cells = padded(context.model.n_swa + context.n_ubatch)
    return max(0, min(cells, context.n_ctx_seq) - context.model.n_swa)


def tiles(rows: int, heads: int, threads: int) -> int:
    """Tiles that flash attention computes for a chunk of one sequence.

    The rows of all heads are divided into four parts per thread; a border inside a tile splits it in two, and
    either half costs as much as a whole tile.
    """
    total = rows * heads
    part = -(-total // (4 * threads)) if threads > 1 else total
    borders = set(range(0, total, part)) | {head * rows for head in range(heads)} | {total}
    ends = sorted(borders)
    return sum(-(-(end - begin) // TILE_ROWS) for begin, end in pairwise(ends))


def efficient_tiled_chunk(heads: int, threads: int) -> int:
    """Two tiles of rows where that saves a fifth of the work: with nine heads and two threads, a quarter."""
    one, two = (tiles(n * TILE_ROWS, heads, threads) for n in (1, 2))
    return 2 * TILE_ROWS if two <= (1 - tuning.TILES_SAVED_SHARE) * 2 * one else TILE_ROWS


def chunk_rows(context: Context, measures: ContextMeasures, quirks: Quirks) -> tuple[int, int]:
    """Prompt chunks are a multiple of the first number of rows, and efficient from the second on."""
    if context.model.on_gpu:
        return 1, 1
    if quirks.row_attention and context.n_ubatch < TILE_ROWS:
        return tuning.CHUNK_MULTIPLE_ROW_ATTENTION, tuning.CHUNK_EFFICIENT_ROW_ATTENTION
    if quirks.side_context:
        return tuning.CHUNK_MULTIPLE_SIDE_CONTEXT, tuning.CHUNK_EFFICIENT_SIDE_CONTEXT
    if not quirks.tiled_attention:
        return tuning.CHUNK_MULTIPLE_CPU, tuning.CHUNK_EFFICIENT_CPU
    threads = measures.n_threads or context.plan.n_threads
    return TILE_ROWS, efficient_tiled_chunk(context.model.n_head, threads)


def capabilities_of(
    context: Context,
    measures: ContextMeasures,
    quirks: Quirks,
    *,
    batch_invariant: bool = True,
    adapters: bool = False,
    media: bool = False,
    media_aside: bool = False,
) -> Capabilities:
    """`media_aside`: pictures run in passes that pause between layers."""
    model = context.model
    rewind, tokens = rewind_of(context, measures)
    pooled = context.plan.unified and not model.is_recurrent
    chunk_is_ubatch = not context.flash_attention and not model.on_gpu  # see `ubatches`
    multiple, efficient = chunk_rows(context, measures, quirks)
    least = max(quirks.batch_invariant_rows_min, tuning.ROWS_TOGETHER)
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
        chunk_max=context.n_ubatch if chunk_is_ubatch else context.n_batch,
        outputs_max=context.outputs_max,
        measured_max=context.outputs_max,
        chunk_multiple=multiple,
        chunk_least=multiple if quirks.tiled_attention else least,
        media_chunk_least=tuning.ROWS_TOGETHER if media_aside else 0,
        efficient_chunk=efficient,
        tile_rows=TILE_ROWS if quirks.tile_fill else 1,  # unfilled tiles use a kernel whose cost is measured
        contiguous=not pooled,
        mixed_batches=not quirks.separate_calls,
        equal_spans=not context.plan.unified or model.is_hybrid or model.is_recurrent,
        batch_invariant=batch_invariant,
        adapters=adapters,
        one_group=adapters,  # they are set on the context
        media_rows_max=context.n_ubatch if media else 0,
        vocab=context.vocab,
    )
