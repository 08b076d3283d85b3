"""SiLU(gate) · up, or GELU(gate) · up, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded

GELU_SLOPE = tl.constexpr(1.5957691216057308)  # 2 · sqrt(2 / pi)
GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _gated(x, out, x_stride, inner, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + inner + columns, mask=inside, other=0.0).to(tl.float32)
    if GELU:  # x · (1 + tanh z) / 2 = x · sigmoid(2 z)
        active = gate / (1.0 + tl.exp((gate + gate * gate * gate * GELU_CUBE) * -GELU_SLOPE))
    else:
        active = gate / (1.0 + tl.exp(-gate))
    value = rounded(active, x.dtype.element_ty) * up
    tl.store(out + row * inner + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(x: Tensor, *, block: int = 2048, warps: int = 8) -> Tensor:
    return _launch(x, gelu=False, block=block, warps=warps)


def gelu_mul(x: Tensor, *, block: int = 2048, warps: int = 8) -> Tensor:
    return _launch(x, gelu=True, block=block, warps=warps)


def _launch(x: Tensor, *, gelu: bool, block: int, warps: int) -> Tensor:
    assert x.dim() == 2
    assert x.stride(1) == 1
    rows, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
    block = min(block, triton.next_power_of_2(inner))
    if rows:
        _gated[(rows, triton.cdiv(inner, block))](
            x, out, x.stride(0), inner, GELU=gelu, BLOCK=block, num_warps=warps
        )
    return out
