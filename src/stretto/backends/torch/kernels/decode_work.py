"""The list of runs of decode attention, made on the device: one program for each span."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch import work_list
from stretto.backends.torch.work_list import RUN_TOKENS_MIN, RUNS_MAX, DecodeWork

SHARES = 6  # runs for each multiprocessor, if all were of the mean length
MULTIPLE = tl.constexpr(work_list.RUN_MULTIPLE)
SPAN_BITS = tl.constexpr(work_list.SPAN_BITS)
SPAN_UNIT = tl.constexpr(1 << work_list.SPAN_BITS)
SPAN_MASK = tl.constexpr((1 << work_list.SPAN_BITS) - 1)
BLOCK = 128


@triton.jit
def run_length(length, run_tokens, runs_max):
    """Tokens of the runs of a span, but for its last one."""
    least = tl.cdiv(tl.cdiv(length, runs_max), MULTIPLE) * MULTIPLE
    return tl.maximum(run_tokens, least)


@triton.jit
def _lengths(lengths, starts, at, rows, MIXED: tl.constexpr):
    """Of spans; with MIXED 0 for those that have not one row."""
    length = tl.load(lengths + at, mask=at < rows, other=0)
    if MIXED:
        begin = tl.load(starts + at, mask=at < rows, other=0)
        end = tl.load(starts + at + 1, mask=at < rows, other=0)
        length = tl.where(end - begin == 1, length, 0)
    return length


@triton.jit(do_not_specialize=["rows", "items_max", "shares", "runs_max", "run_min"])
def _plan(
    lengths, starts, items, run_out, rows, items_max, shares, runs_max, run_min,
    MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    inner = tl.arange(0, BLOCK)
    total = 0
    for start in range(0, rows, BLOCK):
        total += tl.sum(_lengths(lengths, starts, start + inner, rows, MIXED), axis=0)
    run = tl.maximum(tl.cdiv(tl.cdiv(total, shares), MULTIPLE) * MULTIPLE, run_min)
    length = _lengths(lengths, starts, span, rows, MIXED)
    own_run = run_length(length, run, runs_max)
    own_full = tl.maximum(tl.cdiv(length, own_run) - 1, 0)
    own_last = length - own_full * own_run
    before = 0  # full runs of spans before this one
    every = 0
    longer = 0  # last runs that come first
    for start in range(0, rows, BLOCK):
        at = start + inner
        other = _lengths(lengths, starts, at, rows, MIXED)
        other_run = run_length(other, run, runs_max)
        full = tl.maximum(tl.cdiv(other, other_run) - 1, 0)
        last = other - full * other_run
        every += tl.sum(full, axis=0)
        before += tl.sum(tl.where(at < span, full, 0), axis=0)
        first = (at < rows) & ((last > own_last) | ((last == own_last) & (at < span)))
        longer += tl.sum(first.to(tl.int32), axis=0)
    row = span
    if MIXED:
        row = tl.load(starts + span)
    for number in range(own_full + 1):
        at = before + number
        if number == own_full:
            at = every + longer
        item = items + 4 * at
        tl.store(item, span + number * SPAN_UNIT)
        tl.store(item + 1, length)
        tl.store(item + 2, row)
    for at in range(every + rows + span, items_max, rows):
        tl.store(items + 4 * at, -1)
    if span == 0:
        tl.store(run_out, run)


def plan_work(
    context_lens: Tensor,
    query_starts: Tensor | None,
    kv_heads: int,
    *,
    processors: int,
    window: int,
    run_min: int = RUN_TOKENS_MIN,
) -> DecodeWork:
    rows, shares = context_lens.shape[0], triton.cdiv(SHARES * processors, kv_heads)
    runs_max = min(RUNS_MAX, triton.cdiv(window, run_min))
    items = torch.empty(rows + shares, 4, dtype=torch.int32, device=context_lens.device)
    run_tokens = torch.empty(1, dtype=torch.int32, device=context_lens.device)
    sizes = (rows, len(items), shares, runs_max, run_min)
    starts = context_lens if query_starts is None else query_starts
    _plan[(rows,)](
        context_lens, starts, items, run_tokens, *sizes,
        MIXED=query_starts is not None, BLOCK=BLOCK, num_warps=1,
    )  # fmt: skip
    return DecodeWork(items, run_tokens, runs_max)
