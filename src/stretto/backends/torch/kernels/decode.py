"""Decode attention: one query row over a long paged context, split among programs (flash-decoding).

A program handles one span, one key-value head and one run of tiles. The heads of a group are the rows of one
tensor-core tile, so keys and values are read once. The host chooses the maximum number of runs; the number of
tiles per run is computed here from the context length; a run without tiles exits immediately. A single run
writes the result itself; otherwise the last program of a group to finish merges the runs in a fixed order, so
the result is deterministic. Block counters, reset to zero after use, identify the last program.

`LISTED`: a program takes its span and run from a list made on the device, the longest runs first (see
`ops.decode_work`). So do batches that fill the GPU; runs are as long as a fair share of all contexts.

`FUSED`: queries, keys and values come directly from the QKV product. Each program normalizes and rotates its
own queries; the first run does so with the new key too, writes key and value to their page, and starts from
their score instead of reading them back.

`WINDOW`: only the last so many tokens are seen; tiles before them are not read. `SINKS`: the first run starts
from a logit of each head that has no value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.block_counters import block_counters
from stretto.backends.torch.kernels.decode_tiles import LOG2_E, over_tiles, with_sinks
from stretto.backends.torch.kernels.decode_work import SPAN_BITS, SPAN_MASK, run_length
from stretto.backends.torch.kernels.fresh_token import (
    FusedInputs,
    fresh_arguments,
    head_and_pair,
    rotated,
    write_token,
)
from stretto.backends.torch.kernels.pdl import (
    PDL_STATE,
    launch_dependents,
    launch_dependents_late,
    launch_options,
    wait_for_previous,
)
from stretto.backends.torch.work_list import DecodeWork


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Work partition: tokens per tile, maximum runs per span, minimum tiles per run.

    `touch`: a run prefetches all of its page numbers, which pays off if it has many. `merge`: numbers merged
    at a time; more would take so many registers that fewer programs run at once.
    """

    block_n: int = 64
    splits: int = 1
    tiles_min: int = 8
    warps: int = 4
    stages: int = 3
    touch: bool = False
    merge: int = 1024


@triton.jit
def _runs(length, skipped, splits, tiles_min, BLOCK_N: tl.constexpr):
    """(tiles, tiles per run) of a context without its first `skipped` tiles."""
    tiles = tl.cdiv(length, BLOCK_N) - skipped
    return tiles, tl.maximum(tl.cdiv(tiles, splits), tiles_min)


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
    dims = tl.arange(0, DIM_PAD)
    if SPLITS_BLOCK == SPLITS_PAD:  # all at once: levels and parts are on their way together
        values = _parts(parts, base, 0, used, GROUP, GROUP_PAD, DIM, DIM_PAD, SPLITS_BLOCK)
        peak = tl.where(real, tl.max(all_levels, axis=0), 0.0)
        weight = tl.exp2(all_levels - peak[None, :])
        total = tl.sum(weight, axis=0)
        mixed = tl.sum(values * weight[:, :, None], axis=0)
    else:
        peak = tl.where(real, tl.max(all_levels, axis=0), 0.0)
        total = tl.zeros([GROUP_PAD], tl.float32)
        mixed = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
        for start in range(0, used, SPLITS_BLOCK):
            values = _parts(parts, base, start, used, GROUP, GROUP_PAD, DIM, DIM_PAD, SPLITS_BLOCK)
            some = start + tl.arange(0, SPLITS_BLOCK)
            live = (some < used)[:, None] & real[None, :]
            place = (base + some)[:, None] * GROUP + member[None, :]
            level = tl.load(levels + place, mask=live, other=float("-inf"), cache_modifier=".cg")
            weight = tl.exp2(level - peak[None, :])
            total += tl.sum(weight, axis=0)
            mixed += tl.sum(values * weight[:, :, None], axis=0)
    answer = (mixed / total[:, None]).to(out.dtype.element_ty)
    pointers = out + target + member[:, None] * DIM + dims[None, :]
    tl.store(pointers, answer, mask=real[:, None] & (dims < DIM)[None, :])


@triton.jit
def _parts(
    parts, base, start, used, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, SPLITS_BLOCK: tl.constexpr,
):  # fmt: skip
    """What some runs found: [SPLITS_BLOCK, GROUP_PAD, DIM_PAD]."""
    some, member, dims = start + tl.arange(0, SPLITS_BLOCK), tl.arange(0, GROUP_PAD), tl.arange(0, DIM_PAD)
    live = (some < used)[:, None] & (member < GROUP)[None, :]
    place = (base + some)[:, None] * GROUP + member[None, :]
    pointers = parts + place[:, :, None] * DIM + dims[None, None, :]
    mask = live[:, :, None] & (dims < DIM)[None, None, :]
    return tl.load(pointers, mask=mask, other=0.0, cache_modifier=".cg")


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
    k_scales, v_scales, sinks, items, run_tokens,
    k_new, v_new, slot_mapping, cos_sin, q_weight, k_weight, eps, scale,
    q_row_stride, q_head_stride, table_stride, page_stride, token_stride, head_stride,
    new_row_stride, new_head_stride, heads, splits, tiles_min,
    LISTED: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
    SCALED: tl.constexpr, MIXED: tl.constexpr, FUSED: tl.constexpr, PDL: tl.constexpr, NORM: tl.constexpr,
    SPLIT: tl.constexpr, TOUCH: tl.constexpr, SPLITS_PAD: tl.constexpr, SPLITS_BLOCK: tl.constexpr,
    GROUP_PAD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    span = tl.program_id(2)
    live = True
    row = span
    if (
        LISTED
    ):  # what the next loads depend on comes with the item: each load that waits for another takes 0.5 µs
        item = tl.load(items + 4 * split)
        whole = tl.load(items + 4 * split + 1)
        row = tl.load(items + 4 * split + 2)
        run = tl.load(run_tokens)
        live = (item >= 0) & (whole > 0)
        split = item >> SPAN_BITS
        span = item & SPAN_MASK
    else:
        whole = tl.load(context_lens + span)
        if MIXED:
            row = tl.load(query_starts + span)
            live = tl.load(query_starts + span + 1) - row == 1
    length = whole
    if FUSED:
        live = live & (length > 0)
        length -= 1  # tokens already in the pages
    begin = 0
    skipped = 0
    if WINDOW:
        begin = tl.maximum(length + 1 - WINDOW, 0) if FUSED else tl.maximum(length - WINDOW, 0)
        skipped = begin // BLOCK_N
    tiles, per_run = _runs(length, skipped, splits, tiles_min, BLOCK_N)
    if LISTED:
        per_run = run_length(whole, run, splits) // BLOCK_N
    first = split * per_run
    if FUSED:
        live = live & ((first < tiles) | (split == 0))
    else:
        live = live & (first < tiles)
    wait_for_previous(PDL)
    if not live:
        return
    last = tl.minimum(first + per_run, tiles)
    table = block_tables + span.to(tl.int64) * table_stride
    k_scale = 1.0
    v_scale = 1.0
    if SCALED:
        k_scale = tl.load(k_scales + kv_head)
        v_scale = tl.load(v_scales + kv_head)
    member = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    inside = dims < DIM
    real = (member < GROUP)[:, None] & inside[None, :]
    rows = q + row.to(tl.int64) * q_row_stride + (kv_head * GROUP + member)[:, None] * q_head_stride
    if FUSED:
        half: tl.constexpr = DIM // 2
        own, pair = head_and_pair(rows, real, dims, DIM)
        new = row.to(tl.int64) * new_row_stride + kv_head * new_head_stride + tl.zeros([1, 1], tl.int32)
        key, key_pair = head_and_pair(k_new + new, inside[None, :], dims, DIM)
        value = tl.load(v_new + new + dims[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
        slot = tl.load(slot_mapping + row)
        angles = cos_sin + length.to(tl.int64) * DIM + dims % half
        cos = tl.load(angles, mask=inside, other=0.0)
        sin = tl.load(angles + half, mask=inside, other=0.0)
    else:
        queries = tl.load(rows + dims[None, :], mask=real, other=0.0)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    MIXED_PAD: tl.constexpr = DIM_PAD // 2 if SCALED else DIM_PAD
    mixed = tl.zeros([ROWS, MIXED_PAD], tl.float32)
    other = mixed
    if FUSED:
        swapped = tl.where(dims < half, dims + half, dims - half)
        gain = tl.load(q_weight + dims, mask=inside & NORM, other=0.0)
        gain_pair = tl.load(q_weight + swapped, mask=inside & NORM, other=0.0)
        queries = rotated(own, pair, gain, gain_pair, cos, sin, dims, eps, NORM, DIM)
        if split == 0:
            gain = tl.load(k_weight + dims, mask=inside & NORM, other=0.0)
            gain_pair = tl.load(k_weight + swapped, mask=inside & NORM, other=0.0)
            turned = rotated(key, key_pair, gain, gain_pair, cos, sin, dims, eps, NORM, DIM)
            peak, value = write_token(
                turned, value, k_pages, v_pages, slot, kv_head, queries, scale, k_scale, v_scale,
                page_stride, token_stride, head_stride, SCALED, DIM, DIM_PAD, PAGE,
            )  # fmt: skip
            total += 1.0
            if SCALED:
                low, high = tl.split(tl.reshape(value, [1, MIXED_PAD, 2]))
                mixed += low
                other += high
            else:
                mixed += value
    if SINKS:
        if split == 0:
            peak, total, mixed, other = with_sinks(sinks, kv_head, peak, total, mixed, other, GROUP, ROWS)
    if SCALED:
        queries = queries.to(tl.float16)
        scale *= k_scale
    k_base, v_base = k_pages + kv_head * head_stride, v_pages + kv_head * head_stride
    if SCALED:
        v_base = v_base.to(tl.pointer_type(tl.uint16))
    peak, total, mixed, other = over_tiles(
        queries, k_base, v_base, table, levels, skipped + first, skipped + last, begin, length, scale,
        page_stride, token_stride, peak, total, mixed, other, WINDOW, SCALED, TOUCH, DIM, DIM_PAD, PAGE,
        BLOCK_N, STAGES, PRECISION,
    )  # fmt: skip

    if SCALED:
        mixed = tl.interleave(mixed, other) * v_scale
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
        "SPLITS_BLOCK": max(min(shape.merge // (group_pad * dim_pad), splits_pad), 1),
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
    scales: tuple[Tensor, Tensor] | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
    work: DecodeWork | None = None,
) -> None:
    """Writes the rows of `out` for spans of one row. `scales`: of FP8 heads."""
    heads, dim = q.shape[1:]
    kv_heads, spans, splits = k_pages.shape[2], context_lens.shape[0], shape.splits
    grid = (kv_heads, splits, spans) if work is None else (kv_heads, len(work.items), 1)
    split = splits > 1
    parts = torch.empty((spans, heads, splits, dim) if split else (1,), dtype=torch.float32, device=q.device)
    levels = torch.empty((spans, heads, splits) if split else (1,), dtype=torch.float32, device=q.device)
    counters = block_counters(q.device, spans * kv_heads) if split else levels
    _decode[grid](
        *(q, k_pages, v_pages, block_tables, query_starts, context_lens, out, parts, levels, counters),
        *((levels, levels) if scales is None else scales),
        levels if sinks is None else sinks,
        *((context_lens, context_lens) if work is None else work[:2]),
        *fresh_arguments(fresh, q, context_lens, levels),
        scale * LOG2_E,
        *(q.stride(0), q.stride(1), block_tables.stride(0), *k_pages.stride()[:3]),
        *((0, 0) if fresh is None else fresh.k.stride()[:2]),
        *(heads, splits, shape.tiles_min),
        LISTED=work is not None,
        WINDOW=window,
        SINKS=sinks is not None,
        SCALED=scales is not None,
        MIXED=mixed,
        FUSED=fresh is not None,
        PDL=PDL_STATE.mode,
        NORM=fresh is not None and fresh.q_weight is not None,
        **_constants(q, k_pages, shape),
        **launch_options(),
    )
