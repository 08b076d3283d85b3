"""RMSNorm and add + RMSNorm: one row per program, read once, float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.pdl import (
    PDL_STATE,
    launch_dependents_late,
    launch_options,
    wait_for_previous,
)


@triton.jit
def rounded(value, kind: tl.constexpr):
    """A float32 value rounded to a narrower type."""
    return value.to(kind).to(tl.float32)


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    total,
    x_stride,
    residual_stride,
    width,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents_late(PDL)  # the kernel is very short
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        value = rounded(value, total.dtype.element_ty)
        tl.store(total + row * width + columns, value.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    normed = rounded(value * scale, x.dtype.element_ty) * gain
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, warps: int | None = None) -> Tensor:
    rows = _rows(x)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _launch(rows, None, weight, eps, out, out, warps)
    return out.view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, warps: int | None = None
) -> tuple[Tensor, Tensor]:
    rows, more = _rows(x), _rows(residual)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    total = torch.empty_like(out)
    _launch(rows, more, weight, eps, out, total, warps)
    return out.view(x.shape), total.view(x.shape)


def _rows(x: Tensor) -> Tensor:
    assert x.stride(-1) == 1
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    out: Tensor,
    total: Tensor,
    warps: int | None,
) -> None:
    block = triton.next_power_of_2(x.shape[1])
    if x.shape[0]:
        _rms_norm[(x.shape[0],)](
            x,
            x if residual is None else residual,
            weight,
            out,
            total,
            x.stride(0),
            x.stride(0) if residual is None else residual.stride(0),
            x.shape[1],
            eps,
            ADD=residual is not None,
            BLOCK=block,
            PDL=PDL_STATE.mode,
            num_warps=warps or min(max(block // 512, 1), 16),
            **launch_options(),
        )
