"""The tiles of one run of decode attention, and the sinks that it may start from."""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.tiles import (
    absorb,
    absorb_pairs,
    load_pages,
    load_pairs,
    load_tile,
    tile_offsets,
    touch_pages,
)

LOG2_E = 1.4426950408889634
LOG2 = tl.constexpr(LOG2_E)


@triton.jit
def with_sinks(sinks, kv_head, peak, total, mixed, other, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Softmax state after the sinks of a group's heads."""
    member = tl.arange(0, ROWS)
    sink = tl.load(sinks + kv_head * GROUP + member, mask=member < GROUP, other=0.0).to(tl.float32) * LOG2
    higher = tl.maximum(peak, sink)
    fade = tl.exp2(peak - higher)
    total = total * fade + tl.exp2(sink - higher)
    return higher, total, mixed * fade[:, None], other * fade[:, None]


@triton.jit
def over_tiles(
    queries, k_base, v_base, table, never, first, last, begin, length, scale, page_stride, token_stride,
    peak, total, mixed, other, WINDOW: tl.constexpr, SCALED: tl.constexpr, TOUCH: tl.constexpr,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Softmax state after the tiles from `first` to `last`.

    Only the context's last tile is masked; with a window, which has few, all are.
    """
    inner = tl.arange(0, BLOCK_N)
    pages = load_pages(table, first, length, BLOCK_N, PAGE)
    if WINDOW:
        for tile in tl.range(first, last, num_stages=STAGES):
            own = pages
            pages = load_pages(table, tile + 1, length, BLOCK_N, PAGE)
            token = tile * BLOCK_N + inner
            seen = (token >= begin) & (token < length)
            peak, total, mixed, other = _one_tile(
                queries, k_base, v_base, own, tile, seen, scale, page_stride, token_stride,
                peak, total, mixed, other, True, SCALED, DIM, DIM_PAD, PAGE, BLOCK_N, PRECISION,
            )  # fmt: skip
    else:
        whole = tl.minimum(last, length // BLOCK_N)
        if TOUCH:
            touch_pages(table, first * BLOCK_N, tl.minimum(last * BLOCK_N, length), never, PAGE)
        for tile in tl.range(first, whole, num_stages=STAGES):
            own = pages
            pages = load_pages(table, tile + 1, length, BLOCK_N, PAGE)
            peak, total, mixed, other = _one_tile(
                queries, k_base, v_base, own, tile, inner < BLOCK_N, scale, page_stride, token_stride,
                peak, total, mixed, other, False, SCALED, DIM, DIM_PAD, PAGE, BLOCK_N, PRECISION,
            )  # fmt: skip
        if whole < last:
            valid = whole * BLOCK_N + inner < length
            peak, total, mixed, other = _one_tile(
                queries, k_base, v_base, pages, whole, valid, scale, page_stride, token_stride,
                peak, total, mixed, other, True, SCALED, DIM, DIM_PAD, PAGE, BLOCK_N, PRECISION,
            )  # fmt: skip
    return peak, total, mixed, other


@triton.jit
def _one_tile(
    queries, k_base, v_base, pages, tile, valid, scale, page_stride, token_stride, peak, total, mixed, other,
    MASKED: tl.constexpr, SCALED: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Softmax state after one tile. Of FP8 values `mixed` has the even places, `other` the odd ones."""
    dims = tl.arange(0, DIM_PAD)
    place = tile_offsets(pages, tile, page_stride, token_stride, dims, BLOCK_N, PAGE)
    keys = load_tile(k_base, place, dims, valid, DIM, DIM_PAD, MASKED).to(queries.dtype)
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    if MASKED:
        scores = tl.where(valid[None, :], scores, float("-inf"))
    if SCALED:
        pairs = tl.arange(0, DIM_PAD // 2)
        place = tile_offsets(pages, tile, page_stride // 2, token_stride // 2, pairs, BLOCK_N, PAGE)
        low, high = load_pairs(v_base, place, pairs, valid, DIM, MASKED)
        peak, total, mixed, other = absorb_pairs(scores, low, high, peak, total, mixed, other)
    else:
        values = load_tile(v_base, place, dims, valid, DIM, DIM_PAD, MASKED)
        peak, total, mixed = absorb(scores, values, peak, total, mixed, PRECISION)
    return peak, total, mixed, other
