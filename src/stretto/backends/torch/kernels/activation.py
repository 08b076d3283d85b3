"""SiLU(gate) · up in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded


@triton.jit
def _silu_mul(x, out, x_stride, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + inner + columns, mask=inside, other=0.0).to(tl.float32)
    value = rounded(gate / (1.0 + tl.exp(-gate)), x.dtype.element_ty) * up
    tl.store(out + row * inner + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(x: Tensor, *, block: int = 2048, warps: int = 8) -> Tensor:
    assert x.dim() == 2
    assert x.stride(1) == 1
    rows, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
    block = min(block, triton.next_power_of_2(inner))
    if rows:
        _silu_mul[(rows, triton.cdiv(inner, block))](x, out, x.stride(0), inner, BLOCK=block, num_warps=warps)
    return out
