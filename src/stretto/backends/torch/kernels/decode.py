"""Decode attention: one query row over a long paged context, split among programs (flash-decoding).

A program handles one span, one key-value head and one run of tiles. The heads of a group are the rows of one
tensor-core tile, so keys and values are read once. The host chooses the maximum number of runs; the number of
tiles per run is computed here from the context length; a run without tiles exits immediately. A single run
writes the result itself; otherwise the last program of a group to finish merges the runs in a fixed order, so
the result is deterministic. Block counters, reset to zero after use, identify the last program.

`FUSED`: queries, keys and values come directly from the QKV product. Each program normalizes and rotates its
own queries; the first run does so with the new key too, writes key and value to their page, and starts from
their score instead of reading them back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.block_counters import block_counters
from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.pdl import (
    PDL_STATE,
    launch_dependents,
    launch_dependents_late,
    launch_options,
    wait_for_previous,
)
from stretto.backends.torch.kernels.tiles import absorb, load_pages, load_tile, tile_offsets, touch_pages

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Work partition: tokens per tile, maximum runs per span, minimum tiles per run.

    `touch`: a run prefetches all of its page numbers, which pays off if it has many.
    """

    block_n: int = 64
    splits: int = 1
    tiles_min: int = 8
    warps: int = 4
    stages: int = 3
    touch: bool = False


@dataclass(frozen=True, slots=True)
class FusedInputs:
    """Inputs of a fused call: new keys and values [spans, kv_heads, dim], and how to rotate heads."""

    k: Tensor
    v: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cos_sin: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float


@triton.jit
def _runs(length, splits, tiles_min, BLOCK_N: tl.constexpr):
    """(tiles, tiles per run) of a context."""
    tiles = tl.cdiv(length, BLOCK_N)
    return tiles, tl.maximum(tl.cdiv(tiles, splits), tiles_min)


@triton.jit
def _heads(base, mask, dims, angles, weight, eps, NORM: tl.constexpr, DIM: tl.constexpr):
    """Heads at `base` [heads, 1], normalized if NORM, then rotated: [heads, DIM_PAD], rounded at each step.

    Every element needs its pair, half a head away, which is loaded rather than moved between threads.
    """
    kind: tl.constexpr = base.dtype.element_ty
    half: tl.constexpr = DIM // 2
    pair = tl.where(dims < half, dims + half, dims - half)
    own = tl.load(base + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(base + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / DIM + eps)[:, None]
        gain = tl.load(weight + dims, mask=dims < DIM, other=0.0).to(tl.float32)[None, :]
        gain_pair = tl.load(weight + pair, mask=dims < DIM, other=0.0).to(tl.float32)[None, :]
        own = rounded(rounded(own * scale, kind) * gain, kind)
        other = rounded(rounded(other * scale, kind) * gain_pair, kind)
    cos = rounded(tl.load(angles + dims % half, mask=dims < DIM, other=0.0), kind)[None, :]
    sin = rounded(tl.load(angles + half + dims % half, mask=dims < DIM, other=0.0), kind)[None, :]
    sign = tl.where(dims < half, -1.0, 1.0)[None, :]
    return (rounded(own * cos, kind) + sign * rounded(other * sin, kind)).to(kind)


@triton.jit
def _merge_runs(
    parts,
    levels,
    out,
    base,
    target,
    used,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
):
    """Merges the runs from `base` on, weighted by level. Other programs wrote them: bypasses the L1 cache."""
    member = tl.arange(0, GROUP_PAD)
    real = member < GROUP
    every = tl.arange(0, SPLITS_PAD)
    all_levels = tl.load(
        levels + (base + every)[:, None] * GROUP + member[None, :],
        mask=(every < used)[:, None] & real[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    peak = tl.max(all_levels, axis=0)
    peak = tl.where(real, peak, 0.0)
    dims = tl.arange(0, DIM_PAD)
    total = tl.zeros([GROUP_PAD], tl.float32)
    mixed = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for start in range(0, used, SPLITS_BLOCK):
        some = start + tl.arange(0, SPLITS_BLOCK)
        live = (some < used)[:, None] & real[None, :]
        place = (base + some)[:, None] * GROUP + member[None, :]
        weight = tl.exp2(
            tl.load(levels + place, mask=live, other=float("-inf"), cache_modifier=".cg") - peak[None, :]
        )
        pointers = parts + place[:, :, None] * DIM + dims[None, None, :]
        mask = live[:, :, None] & (dims < DIM)[None, None, :]
        values = tl.load(pointers, mask=mask, other=0.0, cache_modifier=".cg")
        total += tl.sum(weight, axis=0)
        mixed += tl.sum(values * weight[:, :, None], axis=0)
    answer = (mixed / total[:, None]).to(out.dtype.element_ty)
    pointers = out + target + member[:, None] * DIM + dims[None, :]
    tl.store(pointers, answer, mask=real[:, None] & (dims < DIM)[None, :])


@triton.jit
def _fresh_token(
    k_new, v_new, k_pages, v_pages, slot_mapping, row, kv_head, queries, angles, k_weight, eps, scale,
    new_row_stride, new_head_stride, page_stride, token_stride, head_stride,
    NORM: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Writes the new key and value to their page; returns (the key's scores, the value)."""
    dims = tl.arange(0, DIM_PAD)
    inside = (dims < DIM)[None, :]
    fresh = row.to(tl.int64) * new_row_stride + kv_head * new_head_stride
    one = tl.zeros([1, 1], tl.int32)
    key = _heads(k_new + fresh + one, inside, dims, angles, k_weight, eps, NORM, DIM)
    value = tl.load(v_new + fresh + one + dims[None, :], mask=inside, other=0.0)
    slot = tl.load(slot_mapping + row).to(tl.int64)
    place = slot // PAGE * page_stride + slot % PAGE * token_stride + kv_head * head_stride
    write = inside & (slot >= 0)
    tl.store(k_pages + place + dims[None, :], key, mask=write)
    tl.store(v_pages + place + dims[None, :], value, mask=write)
    return tl.sum(queries.to(tl.float32) * key.to(tl.float32), axis=1) * scale, value.to(tl.float32)


@triton.jit
def _over_tiles(
    queries, k_base, v_base, table, never, first, last, length, scale, page_stride, token_stride,
    peak, total, mixed, TOUCH: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Softmax state after the tiles from `first` to `last`; only the context's last tile is masked."""
    dims = tl.arange(0, DIM_PAD)
    inner = tl.arange(0, BLOCK_N)
    whole = tl.minimum(last, length // BLOCK_N)
    pages = load_pages(table, first, length, BLOCK_N, PAGE)
    if TOUCH:
        touch_pages(table, first * BLOCK_N, tl.minimum(last * BLOCK_N, length), never, PAGE)
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
    return peak, total, mixed


@triton.jit
def _finish_run(
    answer, level, out, parts, levels, counters, target, group, split, splits, used,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, SPLITS_BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores a run's part. The last program merges all parts and resets the counter."""
    member = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    real = (member < GROUP)[:, None] & (dims < DIM)[None, :]
    part = (group * splits + split) * GROUP + member
    tl.store(parts + part[:, None] * DIM + dims[None, :], answer, mask=real)
    tl.store(levels + part, level, mask=member < GROUP)
    tl.debug_barrier()  # all threads' parts are written before one thread signals it
    if tl.atomic_add(counters + group, 1, sem="acq_rel") == used - 1:
        _merge_runs(
            parts, levels, out, group * splits, target, used,
            GROUP, GROUP_PAD, DIM, DIM_PAD, SPLITS_PAD, SPLITS_BLOCK,
        )  # fmt: skip
        tl.store(counters + group, 0)


@triton.jit(do_not_specialize=["splits", "tiles_min"])
def _decode(
    q, k_pages, v_pages, block_tables, query_starts, context_lens, out, parts, levels, counters,
    k_new, v_new, positions, slot_mapping, cos_sin, q_weight, k_weight, eps, scale,
    q_row_stride, q_head_stride, table_stride, page_stride, token_stride, head_stride,
    new_row_stride, new_head_stride, heads, splits, tiles_min,
    MIXED: tl.constexpr, FUSED: tl.constexpr, PDL: tl.constexpr, NORM: tl.constexpr,
    SPLIT: tl.constexpr, TOUCH: tl.constexpr, SPLITS_PAD: tl.constexpr, SPLITS_BLOCK: tl.constexpr,
    GROUP_PAD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    wait_for_previous(PDL)
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    span = tl.program_id(2)
    length = tl.load(context_lens + span)
    row = span
    if MIXED:
        row = tl.load(query_starts + span)
        if tl.load(query_starts + span + 1) - row != 1:
            return
    if FUSED:
        if length <= 0:
            return
        length -= 1  # tokens already in the pages
    tiles, per_run = _runs(length, splits, tiles_min, BLOCK_N)
    first = split * per_run
    if FUSED:
        if (first >= tiles) & (split > 0):
            return
    elif first >= tiles:
        return
    last = tl.minimum(first + per_run, tiles)
    table = block_tables + span.to(tl.int64) * table_stride

    member = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    real = (member < GROUP)[:, None] & (dims < DIM)[None, :]
    rows = q + row.to(tl.int64) * q_row_stride + (kv_head * GROUP + member)[:, None] * q_head_stride
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_PAD], tl.float32)
    if FUSED:
        angles = cos_sin + tl.load(positions + row).to(tl.int64) * DIM
        queries = _heads(rows, real, dims, angles, q_weight, eps, NORM, DIM)
        if split == 0:
            peak, value = _fresh_token(
                k_new, v_new, k_pages, v_pages, slot_mapping, row, kv_head, queries, angles, k_weight,
                eps, scale, new_row_stride, new_head_stride, page_stride, token_stride, head_stride,
                NORM, DIM, DIM_PAD, PAGE,
            )  # fmt: skip
            total += 1.0
            mixed += value
    else:
        queries = tl.load(rows + dims[None, :], mask=real, other=0.0)
    peak, total, mixed = _over_tiles(
        queries, k_pages + kv_head * head_stride, v_pages + kv_head * head_stride, table, levels,
        first, last, length, scale, page_stride, token_stride, peak, total, mixed,
        TOUCH, DIM, DIM_PAD, PAGE, BLOCK_N, STAGES, PRECISION,
    )  # fmt: skip

    launch_dependents_late(PDL)
    answer = mixed / total[:, None]
    target = (row.to(tl.int64) * heads + kv_head * GROUP) * DIM
    pointers = out + target + member[:, None] * DIM + dims[None, :]
    if SPLIT:
        if per_run >= tiles:
            tl.store(pointers, answer.to(out.dtype.element_ty), mask=real)
        else:
            _finish_run(
                answer, peak + tl.log2(total), out, parts, levels, counters, target,
                span.to(tl.int64) * tl.num_programs(0) + kv_head, split, splits, tl.cdiv(tiles, per_run),
                GROUP, GROUP_PAD, ROWS, DIM, DIM_PAD, SPLITS_PAD, SPLITS_BLOCK,
            )  # fmt: skip
    else:
        tl.store(pointers, answer.to(out.dtype.element_ty), mask=real)


def _fresh_arguments(
    fresh: FusedInputs | None, q: Tensor, context_lens: Tensor, levels: Tensor
) -> tuple[object, ...]:
    """Arguments `k_new` to `eps`. Absent ones are never read: any tensor of the same type can be passed."""
    if fresh is None:
        return q, q, context_lens, context_lens, levels, q, q, 0.0
    assert fresh.k.stride() == fresh.v.stride()
    assert (fresh.q_weight is None) == (fresh.k_weight is None)
    return (
        fresh.k,
        fresh.v,
        fresh.positions,
        fresh.slot_mapping,
        fresh.cos_sin,
        q if fresh.q_weight is None else fresh.q_weight,
        q if fresh.k_weight is None else fresh.k_weight,
        fresh.eps,
    )


def _constants(q: Tensor, k_pages: Tensor, shape: DecodeShape) -> dict[str, object]:
    """Compile-time constants: the model's sizes and the partition."""
    heads, dim = q.shape[1:]
    group = heads // k_pages.shape[2]
    group_pad, dim_pad = triton.next_power_of_2(group), triton.next_power_of_2(dim)
    splits_pad = triton.next_power_of_2(shape.splits)
    return {
        "SPLIT": shape.splits > 1,
        "TOUCH": shape.touch,
        "SPLITS_PAD": splits_pad,
        "SPLITS_BLOCK": max(min(8192 // (group_pad * dim_pad), splits_pad), 1),
        "GROUP_PAD": group_pad,
        "GROUP": group,
        "ROWS": max(16, group_pad),
        "DIM": dim,
        "DIM_PAD": dim_pad,
        "PAGE": k_pages.shape[1],
        "BLOCK_N": shape.block_n,
        "STAGES": shape.stages,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": shape.warps,
    }


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
    fresh: FusedInputs | None = None,
) -> None:
    """Writes the rows of `out` for spans of one row."""
    heads, dim = q.shape[1:]
    kv_heads, spans, splits = k_pages.shape[2], context_lens.shape[0], shape.splits
    split = splits > 1
    parts = torch.empty((spans, heads, splits, dim) if split else (1,), dtype=torch.float32, device=q.device)
    levels = torch.empty((spans, heads, splits) if split else (1,), dtype=torch.float32, device=q.device)
    counters = block_counters(q.device, spans * kv_heads) if split else levels
    _decode[(kv_heads, splits, spans)](
        *(q, k_pages, v_pages, block_tables, query_starts, context_lens, out, parts, levels, counters),
        *_fresh_arguments(fresh, q, context_lens, levels),
        scale * LOG2_E,
        *(q.stride(0), q.stride(1), block_tables.stride(0), *k_pages.stride()[:3]),
        *((0, 0) if fresh is None else fresh.k.stride()[:2]),
        *(heads, splits, shape.tiles_min),
        MIXED=mixed,
        FUSED=fresh is not None,
        PDL=PDL_STATE.mode,
        NORM=fresh is not None and fresh.q_weight is not None,
        **_constants(q, k_pages, shape),
        **launch_options(),
    )
