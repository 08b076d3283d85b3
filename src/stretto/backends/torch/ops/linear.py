"""Linear layers with adjacent operations: the norm before, SiLU · up or the residual after.

The residual is passed as a pair (x, residual), to be summed, with None for nothing to add: with many rows the
next norm adds it, with few rows the product does. Few rows on CUDA use our own kernels, which read the
weights once at memory speed; otherwise it is torch's product between the other operators. Rounding is the
same: each product, sum and norm once, to the dtype of `x`. FP8 weights have operators of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stretto.backends.torch.ops import fp8_linear
from stretto.backends.torch.ops.activation import silu_mul, silu_mul_reference
from stretto.backends.torch.ops.fp8 import Fp8Matrix
from stretto.backends.torch.ops.norm import add_rms_norm_reference, rms_norm_reference, summed_norm

Weight = Tensor | Fp8Matrix
FEW_ROWS = 1  # up to this many: products fused with adjacent operations; at 4 torch is faster
SKINNY_ROWS = 16  # up to this many: our kernel for the product alone
SKINNY_WEIGHTS_MIN = 1 << 24  # for smaller matrices torch's product is faster
FUSED_WIDTH_MAX = 4096  # a wider row is normalized by a separate kernel


def norm_linear(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(linear(rms_norm(sum)), sum) with sum = x + residual; x and residual [rows, in], weight [out, in]."""
    if isinstance(weight, Fp8Matrix):
        return fp8_linear.norm_linear(x, residual, gain, eps, weight, bias)
    if is_few(x) and weight.shape[1] <= FUSED_WIDTH_MAX:
        from stretto.backends.torch.kernels import linear as kernel

        return kernel.norm_linear(x, residual, gain, eps, weight, bias)
    normed, total = summed_norm(x, residual, gain, eps)
    return linear(normed, weight, bias), total


def norm_gated(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, weight: Weight
) -> tuple[Tensor | fp8_linear.Rows, Tensor]:
    """As `norm_linear`, then SiLU(gate) · up of the product; weight [2 · inner, in], gates first.

    Of FP8 weights the result may be FP8 rows, for `linear_add` with FP8 weights.
    """
    if isinstance(weight, Fp8Matrix):
        return fp8_linear.norm_gated(x, residual, gain, eps, weight)
    if is_few(x) and weight.shape[1] <= FUSED_WIDTH_MAX:
        from stretto.backends.torch.kernels import linear as kernel

        return kernel.norm_linear(x, residual, gain, eps, weight, gated=True)
    normed, total = summed_norm(x, residual, gain, eps)
    if is_skinny(x, weight):
        from stretto.backends.torch.kernels import skinny

        return skinny.linear(normed, weight, gated=True), total
    return silu_mul(linear(normed, weight)), total


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    if isinstance(weight, Fp8Matrix):
        return fp8_linear.linear(x, weight, bias)
    if is_few(x):
        from stretto.backends.torch.kernels import linear as kernel

        return kernel.linear(x, weight, bias)
    if is_skinny(x, weight):
        from stretto.backends.torch.kernels import skinny

        return skinny.linear(x, weight, bias)
    return functional.linear(x, weight, bias)


def linear_add(
    x: Tensor | fp8_linear.Rows, residual: Tensor, weight: Weight, bias: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The pair of linear(x) + residual."""
    if isinstance(weight, Fp8Matrix):
        return fp8_linear.linear_add(x, residual, weight, bias)
    assert not isinstance(x, tuple)
    if is_few(x):
        from stretto.backends.torch.kernels import linear as kernel

        return kernel.linear(x, weight, bias, residual), None
    if is_skinny(x, weight):
        from stretto.backends.torch.kernels import skinny

        return skinny.linear(x, weight, bias, residual), None
    return functional.linear(x, weight, bias), residual


def is_few(x: Tensor) -> bool:
    return x.is_cuda and 0 < x.shape[0] <= FEW_ROWS and x.dtype != torch.float64


def is_skinny(x: Tensor, weight: Tensor) -> bool:
    few = x.is_cuda and FEW_ROWS < x.shape[0] <= SKINNY_ROWS and weight.numel() >= SKINNY_WEIGHTS_MIN
    return few and x.dtype in (torch.bfloat16, torch.float16)


def norm_linear_reference(
    x: Tensor,
    residual: Tensor | None,
    gain: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    if residual is None:
        normed, total = rms_norm_reference(x, gain, eps), x
    else:
        normed, total = add_rms_norm_reference(x, residual, gain, eps)
    product = functional.linear(normed, weight, bias)
    return silu_mul_reference(product) if gated else product, total
