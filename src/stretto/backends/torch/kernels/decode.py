"""Decode attention: one query row against a long paged context, split among programs (flash-decoding).

A program takes one span, one key-value head and one run of tiles. The heads of a group are the rows of one
tensor-core tile, so that keys and values are read once. How many runs there may be is the host's choice, how
many tiles each takes is computed here from the context's length; a run without tiles ends at once. Where one
run is enough it writes the answer, else a second kernel joins the runs, in their order: the same every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.tiles import absorb, load_pages, load_tile, tile_offsets

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """How to cut the work: tokens in a tile, most runs for a span, least tiles in a run."""

    block_n: int = 64
    splits: int = 1
    tiles_min: int = 8
    warps: int = 4
    stages: int = 3


@triton.jit
def _runs(length, splits, tiles_min, BLOCK_N: tl.constexpr):
    """(tiles, tiles in a run) of a context."""
    tiles = tl.cdiv(length, BLOCK_N)
    return tiles, tl.maximum(tl.cdiv(tiles, splits), tiles_min)


@triton.jit(do_not_specialize=["splits", "tiles_min"])
def _decode(
    q,
    k_pages,
    v_pages,
    block_tables,
    query_starts,
    context_lens,
    out,
    parts,
    levels,
    scale,
    q_row_stride,
    q_head_stride,
    table_stride,
    page_stride,
    token_stride,
    head_stride,
    heads,
    splits,
    tiles_min,
    MIXED: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    span = tl.program_id(2)
    length = tl.load(context_lens + span)
    row = span
    if MIXED:
        row = tl.load(query_starts + span)
        if tl.load(query_starts + span + 1) - row != 1:
            return
    tiles, per_run = _runs(length, splits, tiles_min, BLOCK_N)
    first = split * per_run
    if first >= tiles:
        return
    last = tl.minimum(first + per_run, tiles)
    whole = tl.minimum(last, length // BLOCK_N)

    member = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    head = kv_head * GROUP + member
    real = (member < GROUP)[:, None] & (dims < DIM)[None, :]
    queries = tl.load(
        q + row.to(tl.int64) * q_row_stride + head[:, None] * q_head_stride + dims[None, :],
        mask=real,
        other=0.0,
    )
    table = block_tables + span.to(tl.int64) * table_stride
    k_base = k_pages + kv_head * head_stride
    v_base = v_pages + kv_head * head_stride
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_PAD], tl.float32)
    inner = tl.arange(0, BLOCK_N)

    pages = load_pages(table, first, length, BLOCK_N, PAGE)
    for tile in tl.range(first, whole, num_stages=STAGES):
        place = tile_offsets(pages, tile, page_stride, token_stride, dims, BLOCK_N, PAGE)
        pages = load_pages(table, tile + 1, length, BLOCK_N, PAGE)
        keys = load_tile(k_base, place, dims, inner < BLOCK_N, DIM, DIM_PAD, False)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        values = load_tile(v_base, place, dims, inner < BLOCK_N, DIM, DIM_PAD, False)
        peak, total, mixed = absorb(scores, values, peak, total, mixed, PRECISION)
    if whole < last:
        valid = whole * BLOCK_N + inner < length
        place = tile_offsets(pages, whole, page_stride, token_stride, dims, BLOCK_N, PAGE)
        keys = load_tile(k_base, place, dims, valid, DIM, DIM_PAD, True)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        scores = tl.where(valid[None, :], scores, float("-inf"))
        values = load_tile(v_base, place, dims, valid, DIM, DIM_PAD, True)
        peak, total, mixed = absorb(scores, values, peak, total, mixed, PRECISION)

    answer = mixed / total[:, None]
    if per_run >= tiles:
        target = out + (row.to(tl.int64) * heads + head[:, None]) * DIM + dims[None, :]
        tl.store(target, answer.to(out.dtype.element_ty), mask=real)
    else:
        part = (span.to(tl.int64) * heads + head) * splits + split
        tl.store(parts + part[:, None] * DIM + dims[None, :], answer, mask=real)
        tl.store(levels + part, peak + tl.log2(total), mask=member < GROUP)


@triton.jit(do_not_specialize=["splits", "tiles_min"])
def _join(
    parts,
    levels,
    query_starts,
    context_lens,
    out,
    splits,
    tiles_min,
    MIXED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
):
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    span = tl.program_id(1)
    length = tl.load(context_lens + span)
    row = span
    if MIXED:
        row = tl.load(query_starts + span)
        if tl.load(query_starts + span + 1) - row != 1:
            return
    tiles, per_run = _runs(length, splits, tiles_min, BLOCK_N)
    if per_run >= tiles:
        return
    used = tl.cdiv(tiles, per_run)
    base = (span.to(tl.int64) * heads + head) * splits
    every = tl.arange(0, SPLITS_PAD)
    peak = tl.max(tl.load(levels + base + every, mask=every < used, other=float("-inf")), axis=0)
    dims = tl.arange(0, DIM_PAD)
    total = 0.0
    mixed = tl.zeros([DIM_PAD], tl.float32)
    for start in range(0, used, SPLITS_BLOCK):
        some = start + tl.arange(0, SPLITS_BLOCK)
        live = some < used
        weight = tl.exp2(tl.load(levels + base + some, mask=live, other=float("-inf")) - peak)
        pointers = parts + (base + some)[:, None] * DIM + dims[None, :]
        values = tl.load(pointers, mask=live[:, None] & (dims < DIM)[None, :], other=0.0)
        total += tl.sum(weight, axis=0)
        mixed += tl.sum(values * weight[:, None], axis=0)
    target = out + (row.to(tl.int64) * heads + head) * DIM + dims
    tl.store(target, (mixed / total).to(out.dtype.element_ty), mask=dims < DIM)


def decode(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
    *,
    mixed: bool,
    shape: DecodeShape,
) -> None:
    """Writes the rows of `out` that belong to spans of one row."""
    heads, dim = q.shape[1:]
    page_tokens, kv_heads = k_pages.shape[1:3]
    spans, splits = context_lens.shape[0], shape.splits
    group = heads // kv_heads
    split = splits > 1
    parts = torch.empty((spans, heads, splits, dim) if split else (1,), dtype=torch.float32, device=q.device)
    levels = torch.empty((spans, heads, splits) if split else (1,), dtype=torch.float32, device=q.device)
    _decode[(kv_heads, splits, spans)](
        q,
        k_pages,
        v_pages,
        block_tables,
        query_starts,
        context_lens,
        out,
        parts,
        levels,
        scale * LOG2_E,
        q.stride(0),
        q.stride(1),
        block_tables.stride(0),
        k_pages.stride(0),
        k_pages.stride(1),
        k_pages.stride(2),
        heads,
        splits,
        shape.tiles_min,
        MIXED=mixed,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        DIM_PAD=triton.next_power_of_2(dim),
        PAGE=page_tokens,
        BLOCK_N=shape.block_n,
        STAGES=shape.stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=shape.warps,
    )
    if split:
        _join[(heads, spans)](
            parts,
            levels,
            query_starts,
            context_lens,
            out,
            splits,
            shape.tiles_min,
            MIXED=mixed,
            DIM=dim,
            DIM_PAD=triton.next_power_of_2(dim),
            BLOCK_N=shape.block_n,
            SPLITS_PAD=triton.next_power_of_2(splits),
            SPLITS_BLOCK=min(16, triton.next_power_of_2(splits)),
            num_warps=4,
        )
