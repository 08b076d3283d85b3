"""Shared by both attention kernels: locating a tile of keys, and the online softmax.

Scores are kept in base 2: `scale` is the softmax scale times log2(e). FP8 keys and values are multiplied as
float16, which holds every FP8 number exactly; their scales, one for each head, are applied outside the loop.
"""

from __future__ import annotations

import triton
import triton.language as tl

SECTOR_PAGES = tl.constexpr(8)  # page numbers per memory sector of 32 bytes
SECTORS = tl.constexpr(64)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
FP8_MAX = tl.constexpr(448.0)


@triton.jit
def load_pages(table, tile, limit, BLOCK_N: tl.constexpr, PAGE: tl.constexpr):
    """The pages of a tile: one number, or one per token. Tokens from `limit` on are on page 0.

    Kernels load them one tile ahead: otherwise the tile's loads would depend on them, and the compiler would
    spend half of its pipeline on page numbers.
    """
    if PAGE % BLOCK_N == 0:
        tokens = tile * BLOCK_N
    else:
        tokens = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    return tl.load(table + tokens // PAGE, mask=tokens < limit, other=0)


@triton.jit
def touch_pages(table, begin, end, never, PAGE: tl.constexpr):
    """Prefetches the page numbers of the tokens from `begin` to `end` into the L1 cache.

    Otherwise every eighth page number misses the cache, with only one tile's time to hide it. The compiler
    would remove an unused load, so its value feeds a store to `never` that only happens for negative numbers.
    """
    some = begin // PAGE + tl.arange(0, SECTORS) * SECTOR_PAGES
    numbers = tl.load(table + some, mask=some * PAGE < end, other=0)
    tl.store(never + some, numbers.to(tl.float32), mask=numbers < 0)


@triton.jit
def tile_offsets(pages, tile, page_stride, token_stride, dims, BLOCK_N: tl.constexpr, PAGE: tl.constexpr):
    """Offsets [BLOCK_N, DIM_PAD] of the tile's elements. The constant part is kept in 32 bits."""
    inner = tl.arange(0, BLOCK_N)
    if PAGE % BLOCK_N == 0:
        origin = pages.to(tl.int64) * page_stride + (tile * BLOCK_N % PAGE) * token_stride
        return origin + (inner[:, None] * token_stride + dims[None, :])
    if BLOCK_N % PAGE == 0:
        place = inner % PAGE
    else:
        place = (tile * BLOCK_N + inner) % PAGE
    return (pages.to(tl.int64) * page_stride + place * token_stride)[:, None] + dims[None, :]


@triton.jit
def to_fp8(value):
    return tl.minimum(tl.maximum(value, -FP8_MAX), FP8_MAX).to(tl.float8e4nv)


@triton.jit
def load_tile(base, offsets, dims, valid, DIM: tl.constexpr, DIM_PAD: tl.constexpr, MASKED: tl.constexpr):
    """[BLOCK_N, DIM_PAD]; zeros where masked, so that stale memory, possibly NaN, cannot spread."""
    if MASKED:
        return tl.load(base + offsets, mask=valid[:, None] & (dims < DIM)[None, :], other=0.0)
    if DIM == DIM_PAD:
        return tl.load(base + offsets)
    return tl.load(base + offsets, mask=(dims < DIM)[None, :], other=0.0)


@triton.jit
def load_pairs(base, offsets, dims, valid, DIM: tl.constexpr, MASKED: tl.constexpr):
    """A tile of FP8 numbers at even and at odd places, [BLOCK_N, DIM_PAD // 2] float16 each.

    Read as pairs of 16 bits: tensor cores need adjacent tokens in a register, and single bytes would be
    gathered from shared memory one by one.
    """
    if MASKED:
        pairs = tl.load(base + offsets, mask=valid[:, None] & (dims < DIM // 2)[None, :], other=0)
    else:
        pairs = tl.load(base + offsets, mask=(dims < DIM // 2)[None, :], other=0)
    if INTERPRETED:
        low = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        high = ((pairs >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        both = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.e4m3x2 $0, $1;", "=r,h", [pairs], tl.uint32, is_pure=True, pack=1
        )
        low = (both & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
        high = (both >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    return low, high


@triton.jit
def absorb_pairs(scores, low, high, peak, total, mixed, other):
    """As `absorb`, for values in two tensors."""
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    fade = tl.exp2(peak - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * fade + tl.sum(weights, axis=1)
    weights = weights.to(tl.float16)
    mixed = tl.dot(weights, low, mixed * fade[:, None])
    other = tl.dot(weights, high, other * fade[:, None])
    return higher, total, mixed, other


@triton.jit
def absorb(scores, values, peak, total, mixed, PRECISION: tl.constexpr):
    """Online softmax: the running maximum, sum and weighted values after one more tile."""
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    fade = tl.exp2(peak - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * fade + tl.sum(weights, axis=1)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None], input_precision=PRECISION)
    return higher, total, mixed
