"""Linear layers for a few rows, bound by one read of the weights from memory.

A program computes a few output columns, that is whole rows of the weight [out, in]: sums are float32, in a
fixed order, rounded once. `_whole` keeps its weights in registers, loads them first, and can fuse the norm
before (each program normalizes for itself, at the cost of a few cache reads) and SiLU · up or the residual
after. `_long` streams rows that are too wide for registers. FP8 weights have a scale for each row (SCALED).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.pdl import PDL_STATE, launch_dependents, launch_options, wait_for_previous

WHOLE_MAX = 4096  # widest row that is kept in registers
LONG_BLOCK = 1024
PROGRAMS_AIM = 512  # about four per multiprocessor, all resident


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Output columns per program, warps, and for `_long` the loads in flight."""

    block_n: int
    warps: int = 4
    stages: int = 4


@triton.jit
def _whole(
    x, residual, gain, weight, scales, bias, out, total, x_stride, residual_stride, width, outs, eps,
    ROWS: tl.constexpr, NORM: tl.constexpr, ADD_BEFORE: tl.constexpr, ADD_AFTER: tl.constexpr,
    GATED: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    kind: tl.constexpr = x.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    real, inside = n < outs, k < width
    mask = real[:, None] & inside[None, :]
    place = weight + n[:, None].to(tl.int64) * width + k[None, :]
    w = tl.load(place, mask=mask, other=0.0, eviction_policy="evict_first")
    if GATED:
        up = tl.load(place + outs.to(tl.int64) * width, mask=mask, other=0.0, eviction_policy="evict_first")
    if NORM:
        g = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        b = tl.load(bias + n, mask=real, other=0.0).to(tl.float32)
    if SCALED:
        scale_own = tl.load(scales + n, mask=real, other=0.0)
        if GATED:
            scale_up = tl.load(scales + outs + n, mask=real, other=0.0)
    wait_for_previous(PDL)
    for row in tl.static_range(ROWS):
        value = tl.load(x + row * x_stride + k, mask=inside, other=0.0).to(tl.float32)
        if ADD_BEFORE:
            value += tl.load(residual + row * residual_stride + k, mask=inside, other=0.0).to(tl.float32)
            value = rounded(value, kind)
            if tl.program_id(0) == 0:
                tl.store(total + row * width + k, value.to(kind), mask=inside)
        if NORM:
            scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
            value = rounded(rounded(value * scale, kind) * g, kind)
        y = tl.sum(w.to(tl.float32) * value[None, :], axis=1)
        if SCALED:
            y *= scale_own
        if BIAS:
            y += b
        if GATED:
            gate = rounded(y, kind)
            y = rounded(gate / (1.0 + tl.exp(-gate)), kind)
            second = tl.sum(up.to(tl.float32) * value[None, :], axis=1)
            if SCALED:
                second *= scale_up
            y *= rounded(second, kind)
        if ADD_AFTER:
            y = rounded(y, kind)
            y += tl.load(residual + row * residual_stride + n, mask=real, other=0.0).to(tl.float32)
        tl.store(out + row * outs + n, y.to(kind), mask=real)


@triton.jit
def _finish(sums, row, scales, bias, residual, out, n, real, residual_stride, outs, SCALED, BIAS, ADD_AFTER):
    kind: tl.constexpr = out.dtype.element_ty
    y = tl.sum(sums, axis=1)
    if SCALED:
        y *= tl.load(scales + n, mask=real, other=0.0)
    if BIAS:
        y += tl.load(bias + n, mask=real, other=0.0).to(tl.float32)
    if ADD_AFTER:
        y = rounded(y, kind)
        y += tl.load(residual + row * residual_stride + n, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * outs + n, y.to(kind), mask=real)


@triton.jit
def _long(
    x,
    residual,
    weight,
    scales,
    bias,
    out,
    x_stride,
    residual_stride,
    width,
    outs,
    ROWS: tl.constexpr,
    ADD_AFTER: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    wait_for_previous(PDL)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    real = n < outs
    # Rows out of range read the last row, so that weight loads need no mask if the width is even.
    place = weight + tl.minimum(n, outs - 1)[:, None].to(tl.int64) * width + k[None, :]
    s0 = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    s1, s2, s3 = s0, s0, s0
    for start in tl.range(0, width, BLOCK_K, num_stages=STAGES):
        inside = k < width - start
        if EVEN:
            w = tl.load(place + start).to(tl.float32)
        else:
            w = tl.load(place + start, mask=inside[None, :], other=0.0).to(tl.float32)
        s0 += w * tl.load(x + start + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        if ROWS > 1:
            s1 += w * tl.load(x + x_stride + start + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        if ROWS > 2:
            s2 += w * tl.load(x + 2 * x_stride + start + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        if ROWS > 3:
            s3 += w * tl.load(x + 3 * x_stride + start + k, mask=inside, other=0.0).to(tl.float32)[None, :]
    _finish(s0, 0, scales, bias, residual, out, n, real, residual_stride, outs, SCALED, BIAS, ADD_AFTER)
    if ROWS > 1:
        _finish(s1, 1, scales, bias, residual, out, n, real, residual_stride, outs, SCALED, BIAS, ADD_AFTER)
    if ROWS > 2:
        _finish(s2, 2, scales, bias, residual, out, n, real, residual_stride, outs, SCALED, BIAS, ADD_AFTER)
    if ROWS > 3:
        _finish(s3, 3, scales, bias, residual, out, n, real, residual_stride, outs, SCALED, BIAS, ADD_AFTER)


def choose_whole(outs: int, width: int, *, gated: bool, small: bool = False) -> LinearShape:
    """16 KiB of weights for four warps: a few programs per multiprocessor hide memory latency.

    `small`: FP8 weights, of which each program takes more.
    """
    pad = triton.next_power_of_2(width)
    if small:
        block_n = max(16_384 // pad, 1)
        return LinearShape(block_n if triton.cdiv(outs, block_n) > 2 * PROGRAMS_AIM else max(block_n // 2, 1))
    warps = 4 if pad <= 2048 else 8
    block_n = max(2048 * warps // pad // (2 if gated else 1), 1)
    while block_n > 1 and triton.cdiv(outs, block_n) < PROGRAMS_AIM // 2:
        block_n //= 2
    return LinearShape(block_n, warps)


def choose_long(outs: int, rows: int) -> LinearShape:
    block_n = 8
    while block_n > 1 and (triton.cdiv(outs, block_n) < PROGRAMS_AIM or block_n * rows > 16):
        block_n //= 2
    return LinearShape(block_n, 4, 4)


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    gain: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    scales: Tensor | None = None,
    gated: bool = False,
    shape: LinearShape | None = None,
) -> tuple[Tensor, Tensor]:
    """(linear(norm(sum)), sum) with sum = x + residual; `gated`: SiLU(gate) · up of the product."""
    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    total = x if residual is None else torch.empty_like(x, memory_format=torch.contiguous_format)
    shape = shape or choose_whole(outs, x.shape[1], gated=gated, small=scales is not None)
    out = _launch_whole(
        x, weight, bias, outs, shape, scales=scales, gain=gain, eps=eps, before=residual, total=total,
        gated=gated,
    )  # fmt: skip
    return out, total


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    scales: Tensor | None = None,
    shape: LinearShape | None = None,
    long: bool | None = None,
) -> Tensor:
    """linear(x), rounded, plus `residual`."""
    outs, width = weight.shape
    if long is None:
        long = width > WHOLE_MAX
    if not long:
        shape = shape or choose_whole(outs, width, gated=False, small=scales is not None)
        return _launch_whole(x, weight, bias, outs, shape, scales=scales, after=residual)
    rows = x.shape[0]
    assert rows <= 4
    assert x.stride(1) == weight.stride(1) == 1
    assert weight.stride(0) == width
    shape = shape or choose_long(outs, rows)
    out = torch.empty(rows, outs, dtype=x.dtype, device=x.device)
    _long[(triton.cdiv(outs, shape.block_n),)](
        x,
        x if residual is None else residual,
        weight,
        weight if scales is None else scales,
        weight if bias is None else bias,
        out,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        width,
        outs,
        ROWS=rows,
        ADD_AFTER=residual is not None,
        BIAS=bias is not None,
        SCALED=scales is not None,
        EVEN=width % LONG_BLOCK == 0,
        BLOCK_N=shape.block_n,
        BLOCK_K=LONG_BLOCK,
        STAGES=shape.stages,
        PDL=PDL_STATE.mode,
        num_warps=shape.warps,
        **launch_options(),
    )
    return out


def _launch_whole(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    outs: int,
    shape: LinearShape,
    *,
    scales: Tensor | None = None,
    gain: Tensor | None = None,
    eps: float = 0.0,
    before: Tensor | None = None,
    after: Tensor | None = None,
    total: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    rows, width = x.shape
    assert x.stride(1) == weight.stride(1) == 1
    assert weight.stride(0) == width
    residual = before if before is not None else after
    assert residual is None or residual.stride(1) == 1
    out = torch.empty(rows, outs, dtype=x.dtype, device=x.device)
    _whole[(triton.cdiv(outs, shape.block_n),)](
        x,
        x if residual is None else residual,
        weight if gain is None else gain,
        weight,
        weight if scales is None else scales,
        weight if bias is None else bias,
        out,
        out if total is None else total,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        width,
        outs,
        eps,
        ROWS=rows,
        NORM=gain is not None,
        ADD_BEFORE=before is not None,
        ADD_AFTER=after is not None,
        GATED=gated,
        BIAS=bias is not None,
        SCALED=scales is not None,
        BLOCK_N=shape.block_n,
        BLOCK_K=triton.next_power_of_2(width),
        PDL=PDL_STATE.mode,
        num_warps=shape.warps,
        **launch_options(),
    )
    return out
