"""Attention of prefill chunks: tiles of query rows over a paged context, including the cached prefix.

A program handles one key-value head and up to BLOCK_M rows (query tokens × heads of the group) of one span,
found by bisection in `query_starts`. Key tiles visible to every row need no mask; those on the diagonal do.
Spans of one row are left to the decode kernel. The grid covers any partition of rows into spans. With WINDOW
every tile is masked, and those before the window of a program's first row are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.decode_tiles import LOG2, LOG2_E
from stretto.backends.torch.kernels.tiles import (
    absorb,
    load_pages,
    load_tile,
    tile_offsets,
)

LEAST = tl.constexpr(-1e30)


@dataclass(frozen=True, slots=True)
class PrefillShape:
    block_m: int = 128
    block_n: int = 32
    warps: int = 4
    stages: int = 3


@triton.jit
def _span_of(query_starts, spans, tile, BLOCK_Q: tl.constexpr):
    """The last span whose first tile is not after `tile`; span s begins at tile starts[s] // BLOCK_Q + s."""
    low = 0
    high = spans - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_starts + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit(do_not_specialize=["spans"])
def _prefill(
    q,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    sinks,
    block_tables,
    query_starts,
    context_lens,
    out,
    scale,
    spans,
    q_row_stride,
    q_head_stride,
    table_stride,
    page_stride,
    token_stride,
    head_stride,
    heads,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0)
    tile_number = tl.num_programs(1) - 1 - tl.program_id(1)  # late rows attend to most keys: start with them
    span = _span_of(query_starts, spans, tile_number, BLOCK_Q)
    start = tl.load(query_starts + span)
    count = tl.load(query_starts + span + 1) - start
    offset = (tile_number - (start // BLOCK_Q + span)) * BLOCK_Q
    context = tl.load(context_lens + span)
    if (offset >= count) | (count <= 1) | (context == 0):
        return
    prefix = context - count

    member = tl.arange(0, BLOCK_M)
    token = offset + member // GROUP
    dims = tl.arange(0, DIM_PAD)
    head = kv_head * GROUP + member % GROUP
    live = (member < BLOCK_Q * GROUP) & (token < count)
    real = live[:, None] & (dims < DIM)[None, :]
    row = (start + token).to(tl.int64)
    queries = tl.load(
        q + row[:, None] * q_row_stride + head[:, None] * q_head_stride + dims[None, :], mask=real, other=0.0
    )
    if SCALED:
        queries = queries.to(tl.float16)
        scale *= tl.load(k_scales + kv_head)
    table = block_tables + span.to(tl.int64) * table_stride
    k_base = k_pages + kv_head * head_stride
    v_base = v_pages + kv_head * head_stride
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if WINDOW:  # a tile may have no key for a row: its weights are then 0, not NaN
        peak = tl.full([BLOCK_M], LEAST, tl.float32)
    if SINKS:
        peak = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * LOG2
        total += 1.0
    mixed = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    inner = tl.arange(0, BLOCK_N)
    limit = tl.minimum(context, prefix + offset + BLOCK_Q)
    first = 0
    whole = (prefix + offset + 1) // BLOCK_N
    if WINDOW:
        first = tl.maximum(prefix + offset + 1 - WINDOW, 0) // BLOCK_N
        whole = first

    pages = load_pages(table, first, limit, BLOCK_N, PAGE)
    for tile in tl.range(first, whole, num_stages=STAGES):
        place = tile_offsets(pages, tile, page_stride, token_stride, dims, BLOCK_N, PAGE)
        pages = load_pages(table, tile + 1, limit, BLOCK_N, PAGE)
        keys = load_tile(k_base, place, dims, inner < BLOCK_N, DIM, DIM_PAD, False).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        values = load_tile(v_base, place, dims, inner < BLOCK_N, DIM, DIM_PAD, False).to(queries.dtype)
        peak, total, mixed = absorb(scores, values, peak, total, mixed, PRECISION)
    for tile in tl.range(whole, tl.cdiv(limit, BLOCK_N), num_stages=STAGES):
        key = tile * BLOCK_N + inner
        valid = key < limit
        place = tile_offsets(pages, tile, page_stride, token_stride, dims, BLOCK_N, PAGE)
        pages = load_pages(table, tile + 1, limit, BLOCK_N, PAGE)
        keys = load_tile(k_base, place, dims, valid, DIM, DIM_PAD, True).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        seen = (key[None, :] <= (prefix + token)[:, None]) & valid[None, :]
        if WINDOW:
            seen = seen & (key[None, :] > (prefix + token - WINDOW)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        values = load_tile(v_base, place, dims, valid, DIM, DIM_PAD, True).to(queries.dtype)
        peak, total, mixed = absorb(scores, values, peak, total, mixed, PRECISION)

    if SCALED:
        mixed *= tl.load(v_scales + kv_head)
    target = out + (row[:, None] * heads + head[:, None]) * DIM + dims[None, :]
    tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=real)


def prefill(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
    *,
    shape: PrefillShape,
    scales: tuple[Tensor, Tensor] | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
) -> None:
    """Writes the rows of `out` for spans of two rows or more. `scales`: of FP8 heads."""
    rows, heads, dim = q.shape
    page_tokens, kv_heads = k_pages.shape[1:3]
    spans, group = context_lens.shape[0], heads // kv_heads
    block_m = max(shape.block_m, triton.next_power_of_2(group))
    _prefill[(kv_heads, rows // (block_m // group) + spans)](
        q,
        k_pages,
        v_pages,
        *((out, out) if scales is None else scales),
        out if sinks is None else sinks,
        block_tables,
        query_starts,
        context_lens,
        out,
        scale * LOG2_E,
        spans,
        q.stride(0),
        q.stride(1),
        block_tables.stride(0),
        k_pages.stride(0),
        k_pages.stride(1),
        k_pages.stride(2),
        heads,
        WINDOW=window,
        SINKS=sinks is not None,
        SCALED=scales is not None,
        GROUP=group,
        DIM=dim,
        DIM_PAD=triton.next_power_of_2(dim),
        PAGE=page_tokens,
        BLOCK_M=block_m,
        BLOCK_N=shape.block_n,
        STAGES=shape.stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=shape.warps,
    )
