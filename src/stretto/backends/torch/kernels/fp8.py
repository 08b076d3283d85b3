"""Rows quantized to FP8 with a scale for each, for scaled products; fused with the norm or SiLU before.

One program per row, which it reads once: the largest magnitude is known before anything is written. Rounded
to the model's type before FP8, as separate operators would.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.tiles import FP8_MAX, to_fp8

SCALE_MIN = tl.constexpr(1e-12)


@triton.jit
def _store_row(value, out, scales, row, width, columns, inside):
    scale = tl.maximum(tl.max(tl.abs(value), axis=0) / FP8_MAX, SCALE_MIN)
    tl.store(out + row * width + columns, to_fp8(value / scale), mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def _quantize(x, out, scales, x_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    _store_row(value, out, scales, row, width, columns, inside)


@triton.jit
def _norm_quantize(
    x, residual, weight, out, scales, total, x_stride, residual_stride, width, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        value = rounded(value, kind)
        tl.store(total + row * width + columns, value.to(kind), mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    value = rounded(rounded(value * scale, kind) * gain, kind)
    _store_row(value, out, scales, row, width, columns, inside)


@triton.jit
def _silu_quantize(
    x, row_scales, column_scales, out, scales, x_stride, inner, RAW: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    kind: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < inner
    gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + inner + columns, mask=inside, other=0.0).to(tl.float32)
    if RAW:
        own = tl.load(row_scales + row)
        gate = rounded(gate * own * tl.load(column_scales + columns, mask=inside, other=0.0), kind)
        up = rounded(up * own * tl.load(column_scales + inner + columns, mask=inside, other=0.0), kind)
    value = rounded(rounded(gate / (1.0 + tl.exp(-gate)), kind) * up, kind)
    _store_row(value, out, scales, row, inner, columns, inside)


@triton.jit
def _rescale(
    raw, row_scales, column_scales, bias, residual, out, residual_stride, width,
    BIAS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(raw + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    value *= tl.load(row_scales + row) * tl.load(column_scales + columns, mask=inside, other=0.0)
    if BIAS:
        value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value = rounded(value, kind)
        value += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, value.to(kind), mask=inside)


def _outputs(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device),
        torch.empty(rows, 1, dtype=torch.float32, device=device),
    )


def _launch(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(max(block // 1024, 1), 16)}


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    assert x.stride(1) == 1
    rows, width = x.shape
    out, scales = _outputs(rows, width, x.device)
    if rows:
        _quantize[(rows,)](x, out, scales, x.stride(0), width, **_launch(width))
    return out, scales


def norm_rows(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """(the normalized sum in FP8, the sum)."""
    assert x.stride(1) == 1
    rows, width = x.shape
    out, scales = _outputs(rows, width, x.device)
    total = x if residual is None else torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows:
        more = x if residual is None else residual
        strides = (x.stride(0), more.stride(0))
        _norm_quantize[(rows,)](
            x, more, weight, out, scales, total, *strides, width, eps,
            ADD=residual is not None, **_launch(width),
        )  # fmt: skip
    return (out, scales), total


def silu_rows(x: Tensor, raw: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """SiLU(gate) · up of x [rows, 2 · inner], in FP8. `raw`: scales of rows and columns to apply first."""
    assert x.stride(1) == 1
    rows, inner = x.shape[0], x.shape[1] // 2
    out, scales = _outputs(rows, inner, x.device)
    if rows:
        own = raw or (scales, scales)
        _silu_quantize[(rows,)](
            x, *own, out, scales, x.stride(0), inner, RAW=raw is not None, **_launch(inner)
        )  # fmt: skip
    return out, scales


def rescale(
    raw: Tensor,
    row_scales: Tensor,
    column_scales: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    block: int = 1024,
) -> Tensor:
    """raw · row scale · column scale (+ bias), rounded, (+ residual): in place."""
    rows, width = raw.shape
    assert raw.is_contiguous()
    if rows:
        _rescale[(rows, triton.cdiv(width, block))](
            raw, row_scales, column_scales, raw if bias is None else bias,
            raw if residual is None else residual, raw, 0 if residual is None else residual.stride(0), width,
            BIAS=bias is not None, ADD=residual is not None, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return raw
