"""Linear layers for up to sixteen rows: one tensor-core tile of rows and streamed weights.

A program computes a few output columns and iterates over the whole input, several loads ahead; sums are
float32, in a fixed order, rounded once. Padding rows are zeros and are not written. If gated, a program has
the gates and the ups of its columns, and returns SiLU(gate) · up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.pdl import (
    PDL_STATE,
    launch_dependents,
    launch_dependents_late,
    launch_options,
    wait_for_previous,
)

ROWS_MAX = 16  # per tile


@dataclass(frozen=True, slots=True)
class SkinnyShape:
    """Output columns per program, input columns per step, and steps loaded ahead."""

    block_n: int
    block_k: int = 256
    warps: int = 4
    stages: int = 4


PLAIN = SkinnyShape(64, block_k=128, stages=6)  # measured with the matrices of Qwen3-8B on an H200
ADDING = SkinnyShape(32, stages=5)
GATED = SkinnyShape(32)
SMALL, SMALL_GATED = SkinnyShape(32), SkinnyShape(16)  # for devices with less shared memory
SHARED_BYTES_MIN = 200_000


@triton.jit(do_not_specialize=["rows"])
def _skinny(
    x,
    residual,
    weight,
    bias,
    out,
    x_stride,
    residual_stride,
    width,
    outs,
    rows,
    ADD_AFTER: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    wait_for_previous(PDL)
    kind: tl.constexpr = out.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    m = tl.arange(0, ROWS)
    real = (m < rows)[:, None]
    place = weight + tl.minimum(n, outs - 1)[:, None].to(tl.int64) * width + k[None, :]
    source = x + m[:, None] * x_stride + k[None, :]
    ups = place + outs.to(tl.int64) * width
    sums = tl.zeros([ROWS, BLOCK_N], tl.float32)
    up = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in tl.range(0, width, BLOCK_K, num_stages=STAGES):
        if EVEN:
            a = tl.load(source + start, mask=real, other=0.0)
            w = tl.load(place + start)
        else:
            inside = (k < width - start)[None, :]
            a = tl.load(source + start, mask=real & inside, other=0.0)
            w = tl.load(place + start, mask=inside, other=0.0)
        sums = tl.dot(a, tl.trans(w), sums, input_precision=PRECISION)
        if GATED:
            if EVEN:
                w = tl.load(ups + start)
            else:
                w = tl.load(ups + start, mask=inside, other=0.0)
            up = tl.dot(a, tl.trans(w), up, input_precision=PRECISION)
    launch_dependents_late(PDL)
    if BIAS:
        sums += tl.load(bias + n, mask=n < outs, other=0.0).to(tl.float32)[None, :]
    if GATED:
        gate = rounded(sums, kind)
        sums = rounded(gate / (1.0 + tl.exp(-gate)), kind) * rounded(up, kind)
    mask = real & (n < outs)[None, :]
    if ADD_AFTER:
        more = tl.load(residual + m[:, None] * residual_stride + n[None, :], mask=mask, other=0.0)
        sums = rounded(sums, kind) + more.to(tl.float32)
    tl.store(out + m[:, None] * outs + n[None, :], sums.to(kind), mask=mask)


@cache
def _shape(device: torch.device, *, gated: bool, adding: bool) -> SkinnyShape:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        if getattr(properties, "shared_memory_per_block_optin", SHARED_BYTES_MIN) < SHARED_BYTES_MIN:
            return SMALL_GATED if gated else SMALL
    return GATED if gated else ADDING if adding else PLAIN


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    gated: bool = False,
    shape: SkinnyShape | None = None,
) -> Tensor:
    """linear(x), rounded, plus `residual`; or SiLU · up of it, with the gates first in `weight`."""
    rows, width = x.shape
    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    assert not gated or (bias is None and residual is None)
    assert rows <= ROWS_MAX
    assert x.stride(1) == weight.stride(1) == 1
    assert weight.stride(0) == width
    shape = shape or _shape(x.device, gated=gated, adding=residual is not None)
    out = torch.empty(rows, outs, dtype=x.dtype, device=x.device)
    _skinny[(triton.cdiv(outs, shape.block_n),)](
        x,
        x if residual is None else residual,
        weight,
        weight if bias is None else bias,
        out,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        width,
        outs,
        rows,
        ADD_AFTER=residual is not None,
        BIAS=bias is not None,
        GATED=gated,
        EVEN=width % shape.block_k == 0,
        ROWS=ROWS_MAX,
        BLOCK_N=shape.block_n,
        BLOCK_K=shape.block_k,
        STAGES=shape.stages,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=PDL_STATE.mode,
        num_warps=shape.warps,
        **launch_options(),
    )
    return out
