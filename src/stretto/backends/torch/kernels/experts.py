"""Expert products: (row, expert) pairs are grouped by expert, and each group has its own tiles.

Groups are padded to whole tiles by index arithmetic (`_TilePlan`); the grid covers every possible routing,
and tiles beyond the last group exit immediately. The first kernel multiplies by gate and up and applies
SiLU(gate) · up, the second multiplies by down and weights the result; the outputs of the chosen experts are
summed last.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded


class _TilePlan(NamedTuple):
    """order: pairs sorted by expert. Per expert: start in `order`, number of pairs, first padded row."""

    order: Tensor
    starts: Tensor
    counts: Tensor
    padded_starts: Tensor
    tile_experts: Tensor  # one per tile of the grid; the number of experts if unused


@triton.jit
def _tile_pairs(order, starts, counts, padded_starts, expert, tile, BLOCK_M: tl.constexpr):
    place = tile * BLOCK_M - tl.load(padded_starts + expert) + tl.arange(0, BLOCK_M)
    live = place < tl.load(counts + expert)
    pairs = tl.load(order + tl.load(starts + expert) + place, mask=live, other=0)
    return pairs, live


@triton.jit
def _gate_up(
    x,
    weight,
    out,
    order,
    starts,
    counts,
    padded_starts,
    tile_experts,
    experts,
    hidden,
    inner,
    x_stride,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(1)
    expert = tl.load(tile_experts + tile)
    if expert >= experts:
        return
    pairs, live = _tile_pairs(order, starts, counts, padded_starts, expert, tile, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = columns < inner
    step = tl.arange(0, BLOCK_K)
    rows = x + (pairs // TOP_K)[:, None] * x_stride + step[None, :]
    gates = weight + expert.to(tl.int64) * 2 * inner * hidden + columns[:, None] * hidden + step[None, :]
    ups = gates + inner.to(tl.int64) * hidden
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, hidden, BLOCK_K):
        inside = (start + step < hidden)[None, :]
        a = tl.load(rows + start, mask=live[:, None] & inside, other=0.0)
        g = tl.load(gates + start, mask=wanted[:, None] & inside, other=0.0)
        u = tl.load(ups + start, mask=wanted[:, None] & inside, other=0.0)
        gate = tl.dot(a, tl.trans(g), gate, input_precision=PRECISION)
        up = tl.dot(a, tl.trans(u), up, input_precision=PRECISION)
    kind = out.dtype.element_ty
    gate = gate.to(kind).to(tl.float32)  # rounded where separate products would round
    value = rounded(gate / (1.0 + tl.exp(-gate)), kind) * up.to(kind).to(tl.float32)
    target = out + pairs[:, None] * inner + columns[None, :]
    tl.store(target, value.to(kind), mask=live[:, None] & wanted[None, :])


@triton.jit
def _down(
    x,
    weight,
    shares,
    out,
    order,
    starts,
    counts,
    padded_starts,
    tile_experts,
    experts,
    hidden,
    inner,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(1)
    expert = tl.load(tile_experts + tile)
    if expert >= experts:
        return
    pairs, live = _tile_pairs(order, starts, counts, padded_starts, expert, tile, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = columns < hidden
    step = tl.arange(0, BLOCK_K)
    rows = x + pairs[:, None] * inner + step[None, :]
    downs = weight + expert.to(tl.int64) * hidden * inner + columns[:, None] * inner + step[None, :]
    value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inner, BLOCK_K):
        inside = (start + step < inner)[None, :]
        a = tl.load(rows + start, mask=live[:, None] & inside, other=0.0)
        w = tl.load(downs + start, mask=wanted[:, None] & inside, other=0.0)
        value = tl.dot(a, tl.trans(w), value, input_precision=PRECISION)
    value *= tl.load(shares + pairs, mask=live, other=0.0).to(tl.float32)[:, None]
    target = out + pairs[:, None] * hidden + columns[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=live[:, None] & wanted[None, :])


def moe_experts(x: Tensor, weights: Tensor, chosen: Tensor, w_gate_up: Tensor, w_down: Tensor) -> Tensor:
    """`weights` and `chosen` are the router's, [rows, top_k]."""
    rows, hidden = x.shape
    top_k, experts, inner = chosen.shape[1], w_down.shape[0], w_down.shape[2]
    assert x.stride(1) == 1
    assert w_gate_up.is_contiguous()
    assert w_down.is_contiguous()
    pairs = rows * top_k
    if not rows:
        return torch.empty_like(x)
    block_m = min(max(triton.next_power_of_2(triton.cdiv(pairs, experts)), 16), 128)
    plan = _plan(chosen, experts, block_m)
    middle = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    answers = torch.empty(pairs, hidden, dtype=x.dtype, device=x.device)
    block_n = 64 if block_m <= 64 else 128
    options = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": 64,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": 4 if block_m <= 64 else 8,
        "num_stages": 4 if x.element_size() == 2 else 2,
    }
    tiles = plan.tile_experts.shape[0]
    _gate_up[(triton.cdiv(inner, block_n), tiles)](
        x, w_gate_up, middle, *plan, experts, hidden, inner, x.stride(0), TOP_K=top_k, **options
    )
    _down[(triton.cdiv(hidden, block_n), tiles)](
        middle, w_down, weights.contiguous(), answers, *plan, experts, hidden, inner, **options
    )
    return answers.view(rows, top_k, hidden).sum(1, dtype=torch.float32).to(x.dtype)


def _plan(chosen: Tensor, experts: int, block_m: int) -> _TilePlan:
    flat = chosen.flatten()
    pairs = flat.shape[0]
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + block_m - 1) // block_m * block_m
    padded_ends = padded.cumsum(0)
    tiles = pairs // block_m + min(pairs, experts)
    firsts = torch.arange(tiles, device=flat.device) * block_m
    tile_experts = torch.searchsorted(padded_ends, firsts, right=True)
    return _TilePlan(order, counts.cumsum(0) - counts, counts, padded_ends - padded, tile_experts)
