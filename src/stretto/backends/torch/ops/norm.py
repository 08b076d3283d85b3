"""RMS normalization, alone and with the residual addition that precedes it.

Computed in float32 for all input types. The normalized value is rounded to the dtype of `x` before it is
multiplied by the weight, and so is the product: transformers' models round at the same points. A weight may
have a wider type than `x`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) · weight over the last dimension; `x` is [rows, width], its rows may be strided."""
    if x.is_cuda:
        from stretto.backends.torch.kernels import norm as kernel

        return kernel.rms_norm(x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(normalized, sum) of sum = x + residual. Neither input is changed."""
    if x.is_cuda:
        from stretto.backends.torch.kernels import norm as kernel

        return kernel.add_rms_norm(x, residual, weight, eps)
    return add_rms_norm_reference(x, residual, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return ((wide * scale).to(x.dtype) * weight).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def summed_norm(x: Tensor, residual: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(the normalized sum, the sum) of x and, if given, residual."""
    if residual is None:
        return rms_norm(x, gain, eps), x
    return add_rms_norm(x, residual, gain, eps)
