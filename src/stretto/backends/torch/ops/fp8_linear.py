"""Linear layers with FP8 weights, a scale for each row: the contracts of `linear`.

A single row is bound by the read of the weights, which our kernels widen and multiply by the unrounded input.
More rows are quantized too, each with its own scale, for the FP8 product of torch. On a CPU both are
emulated, so that results there show what the GPU's will be.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from stretto.backends.torch.ops.activation import silu_mul
from stretto.backends.torch.ops.fp8 import Fp8Matrix, quantize_rows
from stretto.backends.torch.ops.norm import summed_norm

RAW_ROWS_MAX = 512
FUSED_WIDTH_MAX = 4096  # a wider row is normalized by a separate kernel
Rows = tuple[Tensor, Tensor]  # FP8 rows and their scales [rows, 1]


def norm_linear(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, weight: Fp8Matrix, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    if _is_single(x) and weight.columns <= FUSED_WIDTH_MAX:
        from stretto.backends.torch.kernels import linear as kernel

        return kernel.norm_linear(x, residual, gain, eps, weight.data, bias, scales=weight.scales)
    if not x.is_cuda or _is_single(x):
        normed, total = summed_norm(x, residual, gain, eps)
        return linear(normed, weight, bias), total
    from stretto.backends.torch.kernels import fp8 as quantized

    rows, total = quantized.norm_rows(x, residual, gain, eps)
    return product(rows, weight, bias, x.dtype), total


def norm_gated(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, weight: Fp8Matrix
) -> tuple[Tensor | Rows, Tensor]:
    """The gated product, in FP8 already if it has many rows."""
    if _is_single(x) and weight.columns <= FUSED_WIDTH_MAX:
        from stretto.backends.torch.kernels import linear as kernel

        scales = weight.scales
        return kernel.norm_linear(x, residual, gain, eps, weight.data, scales=scales, gated=True)
    if not x.is_cuda or _is_single(x):
        both, total = norm_linear(x, residual, gain, eps, weight, None)
        return silu_mul(both), total
    from stretto.backends.torch.kernels import fp8 as quantized

    rows, total = quantized.norm_rows(x, residual, gain, eps)
    if x.shape[0] > RAW_ROWS_MAX:
        return quantized.silu_rows(product(rows, weight, None, x.dtype)), total
    return quantized.silu_rows(_raw(rows, weight), (rows[1], weight.scales)), total


def linear(x: Tensor | Rows, weight: Fp8Matrix, bias: Tensor | None = None) -> Tensor:
    if isinstance(x, tuple):
        return product(x, weight, bias, torch.bfloat16)
    if not x.is_cuda:
        return linear_reference(x, weight, bias)
    if _is_single(x):
        return _single(x, weight, bias, None)
    from stretto.backends.torch.kernels import fp8 as quantized

    return product(quantized.quantize_rows(x), weight, bias, x.dtype)


def linear_add(
    x: Tensor | Rows, residual: Tensor, weight: Fp8Matrix, bias: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    if isinstance(x, tuple):
        return _summed(x, residual, weight, bias)
    if _is_single(x):
        return _single(x, weight, bias, residual), None
    if not x.is_cuda:
        return linear_reference(x, weight, bias), residual
    from stretto.backends.torch.kernels import fp8 as quantized

    return _summed(quantized.quantize_rows(x), residual, weight, bias)


def _summed(
    rows: Rows, residual: Tensor, weight: Fp8Matrix, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if rows[0].shape[0] > RAW_ROWS_MAX or residual.dtype != torch.bfloat16:
        return product(rows, weight, bias, residual.dtype), residual
    from stretto.backends.torch.kernels import fp8 as quantized

    return quantized.rescale(_raw(rows, weight), rows[1], weight.scales, bias, residual), None


def _single(x: Tensor, weight: Fp8Matrix, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    from stretto.backends.torch.kernels import linear as kernel

    return kernel.linear(x, weight.data, bias, residual, scales=weight.scales)


def product(rows: Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """torch's FP8 product with scales for rows and columns; it returns bfloat16.

    For up to RAW_ROWS_MAX rows the product without scales is faster, by more than applying them afterwards.
    """
    small, scales = rows
    if small.shape[0] <= RAW_ROWS_MAX:
        from stretto.backends.torch.kernels import fp8 as quantized

        return quantized.rescale(_raw(rows, weight), scales, weight.scales, bias).to(dtype)
    made = torch._scaled_mm(
        small, weight.data.t(), scales, weight.scales.unsqueeze(0), out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip
    made = made if bias is None else made + bias
    return made.to(dtype)


def _raw(rows: Rows, weight: Fp8Matrix) -> Tensor:
    """The product of the FP8 numbers themselves, in bfloat16."""
    one = unit_scale(weight.data.device)
    return torch._scaled_mm(
        rows[0], weight.data.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
    )  # fmt: skip


@cache
def unit_scale(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _is_single(x: Tensor) -> bool:
    return x.is_cuda and x.shape[0] == 1


def linear_reference(x: Tensor, weight: Fp8Matrix, bias: Tensor | None = None) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    if x.shape[0] > 1:
        small, scales = quantize_rows(x)
        x = (small.to(wide) * scales).to(x.dtype)
    made = functional.linear(x.to(wide), weight.data.to(wide)) * weight.scales.to(wide)
    return (made if bias is None else made + bias).to(x.dtype)
