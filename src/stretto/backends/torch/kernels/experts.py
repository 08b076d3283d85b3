"""Expert products: (row, expert) pairs are grouped by expert, and each group has its own tiles.

Three small kernels and two large ones, without a sort and without the host: `_route` selects the experts of
each row, `_group` lists the pairs of each expert, `_gate_up` multiplies them by gate and up and applies
SiLU(gate) · up, `_down` multiplies by down and weights the result, `_sum` adds up the experts of a row. The
grid covers every possible routing: a tile finds its expert from the number of pairs of each, and tiles beyond
the last group exit immediately. FP8 weights have a scale for each row of each expert (SCALED).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.config import CLAMPED_ALPHA
from stretto.backends.torch.kernels.norm import rounded

GROUP_BLOCK = 2048
ALPHA = tl.constexpr(CLAMPED_ALPHA)
LARGE_TILE = 128


class Groups(NamedTuple):
    """pairs [experts, rows]: the pairs (row · top_k + choice) of each expert, in order; counts [experts]."""

    pairs: Tensor
    counts: Tensor


@triton.jit
def _route(
    logits, weights, chosen, experts, stride,
    TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr, TOP_PAD: tl.constexpr,
):  # fmt: skip
    """Softmax and the best experts of one row, the lower number first among equals.

    Of a row that is no number, too, all choices are different experts: `_group` has room for no more.
    """
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    value = tl.load(logits + row * stride + expert, mask=expert < experts, other=float("-inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    value = value / tl.sum(value, axis=0)
    value = tl.where(value >= 0.0, value, 0.0)  # not NaN
    value = tl.where(expert < experts, value, -1.0)
    place = tl.arange(0, TOP_PAD)
    best = tl.zeros([TOP_PAD], tl.float32)
    numbers = tl.zeros([TOP_PAD], tl.int32)
    for choice in tl.static_range(TOP_K):
        weight, number = tl.max(value, axis=0, return_indices=True)
        best = tl.where(place == choice, weight, best)
        numbers = tl.where(place == choice, number.to(tl.int32), numbers)
        value = tl.where(expert == number, -1.0, value)
    if RENORMALIZE:
        best = best / tl.sum(best, axis=0)
    tl.store(weights + row * TOP_K + place, best, mask=place < TOP_K)
    tl.store(chosen + row * TOP_K + place, numbers, mask=place < TOP_K)


@triton.jit(do_not_specialize=["total", "rows"])
def _group(chosen, pairs, counts, total, rows, BLOCK: tl.constexpr):
    """The pairs of one expert, in their order."""
    expert = tl.program_id(0)
    found = 0
    for start in range(0, total, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = (tl.load(chosen + pair, mask=pair < total, other=-1) == expert).to(tl.int32)
        place = found + tl.cumsum(mine, axis=0) - 1
        tl.store(pairs + expert.to(tl.int64) * rows + place, pair, mask=mine > 0)
        found += tl.sum(mine, axis=0)
    tl.store(counts + expert, found)


@triton.jit
def _tile_pairs(
    pairs, counts, tile, experts, rows, BLOCK_M: tl.constexpr, EXPERTS_PAD: tl.constexpr
):  # fmt: skip
    """(expert, its pairs in this tile, which are real); beyond the last tile the expert is `experts`."""
    every = tl.arange(0, EXPERTS_PAD)
    count = tl.load(counts + every, mask=every < experts, other=0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(tiles, axis=0)
    expert = tl.minimum(tl.sum((ends <= tile).to(tl.int32), axis=0), experts)
    mine = every == expert
    first = tl.sum(tl.where(mine, ends - tiles, 0), axis=0)
    place = (tile - first) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = place < tl.sum(tl.where(mine, count, 0), axis=0)
    return expert, tl.load(pairs + expert.to(tl.int64) * rows + place, mask=live, other=0), live


@triton.jit(do_not_specialize=["rows"])
def _gate_up(
    x, weight, scales, bias, out, pairs, counts, experts, rows, hidden, inner, x_stride, limit,
    TOP_K: tl.constexpr, BIAS: tl.constexpr, CLAMPED: tl.constexpr,
    SCALED: tl.constexpr, EXPERTS_PAD: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    expert, own, live = _tile_pairs(pairs, counts, tl.program_id(1), experts, rows, BLOCK_M, EXPERTS_PAD)
    if expert >= experts:
        return
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = columns < inner
    step = tl.arange(0, BLOCK_K)
    sources = x + (own // TOP_K).to(tl.int64)[:, None] * x_stride + step[None, :]
    gates = weight + expert.to(tl.int64) * 2 * inner * hidden + columns[:, None] * hidden + step[None, :]
    ups = gates + inner.to(tl.int64) * hidden
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, hidden, BLOCK_K):
        inside = (start + step < hidden)[None, :]
        a = tl.load(sources + start, mask=live[:, None] & inside, other=0.0)
        g = tl.load(gates + start, mask=wanted[:, None] & inside, other=0.0)
        u = tl.load(ups + start, mask=wanted[:, None] & inside, other=0.0)
        gate = tl.dot(a, tl.trans(g.to(a.dtype)), gate, input_precision=PRECISION)
        up = tl.dot(a, tl.trans(u.to(a.dtype)), up, input_precision=PRECISION)
    if SCALED:
        own_scales = scales + expert * 2 * inner + columns
        gate *= tl.load(own_scales, mask=wanted, other=0.0)[None, :]
        up *= tl.load(own_scales + inner, mask=wanted, other=0.0)[None, :]
    if BIAS:
        own_bias = bias + expert * 2 * inner + columns
        gate += tl.load(own_bias, mask=wanted, other=0.0).to(tl.float32)[None, :]
        up += tl.load(own_bias + inner, mask=wanted, other=0.0).to(tl.float32)[None, :]
    kind = out.dtype.element_ty
    gate = gate.to(kind).to(tl.float32)  # rounded where separate products would round
    up = up.to(kind).to(tl.float32)
    if CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        value = gate / (1.0 + tl.exp(gate * -ALPHA)) * (up + 1.0)
    else:
        value = rounded(gate / (1.0 + tl.exp(-gate)), kind) * up
    target = out + own.to(tl.int64)[:, None] * inner + columns[None, :]
    tl.store(target, value.to(kind), mask=live[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["rows"])
def _down(
    x, weight, scales, bias, shares, out, pairs, counts, experts, rows, hidden, inner,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr, EXPERTS_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    expert, own, live = _tile_pairs(pairs, counts, tl.program_id(1), experts, rows, BLOCK_M, EXPERTS_PAD)
    if expert >= experts:
        return
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = columns < hidden
    step = tl.arange(0, BLOCK_K)
    sources = x + own.to(tl.int64)[:, None] * inner + step[None, :]
    downs = weight + expert.to(tl.int64) * hidden * inner + columns[:, None] * inner + step[None, :]
    value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inner, BLOCK_K):
        inside = (start + step < inner)[None, :]
        a = tl.load(sources + start, mask=live[:, None] & inside, other=0.0)
        w = tl.load(downs + start, mask=wanted[:, None] & inside, other=0.0)
        value = tl.dot(a, tl.trans(w.to(a.dtype)), value, input_precision=PRECISION)
    if SCALED:
        value *= tl.load(scales + expert * hidden + columns, mask=wanted, other=0.0)[None, :]
    if BIAS:
        value += tl.load(bias + expert * hidden + columns, mask=wanted, other=0.0).to(tl.float32)[None, :]
    value *= tl.load(shares + own, mask=live, other=0.0).to(tl.float32)[:, None]
    target = out + own.to(tl.int64)[:, None] * hidden + columns[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=live[:, None] & wanted[None, :])


@triton.jit
def _sum(answers, out, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The experts of one row, added in float32 in their order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP_K):
        source = answers + (row * TOP_K + choice) * hidden + columns
        total += tl.load(source, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, total.to(out.dtype.element_ty), mask=inside)


def route(logits: Tensor, top_k: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Weights (float32) and numbers (int32) of the chosen experts, [rows, top_k] each."""
    rows, experts = logits.shape
    assert logits.stride(1) == 1
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    if rows:
        _route[(rows,)](
            logits, weights, chosen, experts, logits.stride(0),
            TOP_K=top_k, RENORMALIZE=renormalize, BLOCK=triton.next_power_of_2(experts),
            TOP_PAD=triton.next_power_of_2(top_k), num_warps=1,
        )  # fmt: skip
    return weights, chosen


def group(chosen: Tensor, experts: int) -> Groups:
    """The pairs of each expert; a row has an expert at most once, so no list is longer than the rows."""
    rows, total = chosen.shape[0], chosen.numel()
    pairs = torch.empty(experts, max(rows, 1), dtype=torch.int32, device=chosen.device)
    counts = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    block = min(GROUP_BLOCK, triton.next_power_of_2(max(total, 1)))
    _group[(experts,)](chosen, pairs, counts, total, rows, BLOCK=block, num_warps=4 if block > 256 else 1)
    return Groups(pairs, counts)


def choose_tile(pairs: int, experts: int) -> int:
    """Rows of a tile: most experts fit into one, so that their weights are read once."""
    return int(min(max(triton.next_power_of_2(triton.cdiv(3 * pairs, 2 * experts)), 16), LARGE_TILE))


def moe_experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    biases: tuple[Tensor, Tensor] | None = None,
    limit: float = 0.0,
    tile: int | None = None,
) -> Tensor:
    """`weights` and `chosen` are the router's, [rows, top_k]; `scales`, `biases` those of both matrices."""
    rows, hidden = x.shape
    top_k, experts, inner = chosen.shape[1], w_down.shape[0], w_down.shape[2]
    assert x.stride(1) == 1
    assert w_gate_up.is_contiguous()
    assert w_down.is_contiguous()
    out = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    pairs = rows * top_k
    block_m = tile or choose_tile(pairs, experts)
    groups = group(chosen, experts)
    middle = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    answers = torch.empty(pairs, hidden, dtype=x.dtype, device=x.device)
    block_n = 64 if block_m <= 64 else 128
    options = {
        "BIAS": biases is not None,
        "SCALED": scales is not None,
        "EXPERTS_PAD": triton.next_power_of_2(experts),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": 64,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": 4 if block_m <= 64 else 8,
        "num_stages": 4 if x.element_size() == 2 else 2,
    }
    tiles = pairs // block_m + min(pairs, experts)
    sizes = (experts, rows, hidden, inner)
    gate_up_scales, down_scales = scales or (weights, weights)
    gate_up_bias, down_bias = biases or (weights, weights)
    _gate_up[(triton.cdiv(inner, block_n), tiles)](
        x, w_gate_up, gate_up_scales, gate_up_bias, middle, *groups, *sizes, x.stride(0), limit,
        TOP_K=top_k, CLAMPED=limit > 0.0, **options,
    )  # fmt: skip
    _down[(triton.cdiv(hidden, block_n), tiles)](
        middle, w_down, down_scales, down_bias, weights.contiguous(), answers, *groups, *sizes, **options
    )
    block = min(1024, triton.next_power_of_2(hidden))
    _sum[(rows, triton.cdiv(hidden, block))](answers, out, hidden, TOP_K=top_k, BLOCK=block, num_warps=4)
    return out
