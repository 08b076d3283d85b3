"""Gated activations of MLPs: SiLU(gate) · up and GELU(gate) · up, rounded before the product."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:
    """`x` is [rows, 2 · inner], gates first: [rows, inner]."""
    if x.is_cuda:
        from stretto.backends.torch.kernels import activation as kernel

        return kernel.silu_mul(x)
    return silu_mul_reference(x)


def gelu_mul(x: Tensor) -> Tensor:
    """As `silu_mul`, with the tanh approximation of GELU."""
    if x.is_cuda:
        from stretto.backends.torch.kernels import activation as kernel

        return kernel.gelu_mul(x)
    return gelu_mul_reference(x)


def silu_mul_reference(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    wide = gate.to(torch.promote_types(x.dtype, torch.float32))
    return torch.nn.functional.silu(wide).to(x.dtype) * up


def gelu_mul_reference(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    wide = gate.to(torch.promote_types(x.dtype, torch.float32))
    return torch.nn.functional.gelu(wide, approximate="tanh").to(x.dtype) * up
