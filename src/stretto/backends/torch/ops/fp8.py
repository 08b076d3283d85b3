"""FP8 (e4m3) numbers with float32 scales: of K and V for each head of a layer, of matrices for each row.

The largest magnitude of a row becomes 448, the largest FP8 number. Scales of heads are measured when a model
is loaded, with room for larger ones; what exceeds it is clamped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
KV_ROOM = 4.0  # how many times the measured magnitude a key or value can have
ROW_SCALE_MIN = 1e-12


class KvScales(NamedTuple):
    """One layer's scales, [kv_heads] each."""

    k: Tensor
    v: Tensor


class Fp8Matrix(NamedTuple):
    """A matrix [rows, columns], or one for each expert, with a scale for each row."""

    data: Tensor
    scales: Tensor

    @property
    def columns(self) -> int:
        return self.data.shape[-1]

    @staticmethod
    def of(matrix: Tensor) -> Fp8Matrix:
        data, scales = quantize_rows(matrix.flatten(0, -2))
        return Fp8Matrix(data.view(matrix.shape), scales.view(matrix.shape[:-1]))

    def widened(self, dtype: torch.dtype) -> Tensor:
        return (self.data.float() * self.scales.unsqueeze(-1)).to(dtype)


def head_scales(x: Tensor) -> Tensor:
    """Scales [heads] for heads like those of x [..., heads, dim]."""
    peak = x.float().abs().flatten(0, -3).amax((0, 2))
    return (KV_ROOM / FP8_MAX * peak).clamp(min=ROW_SCALE_MIN)


def quantize_heads(x: Tensor, scales: Tensor) -> Tensor:
    """x [rows, heads, dim] in FP8."""
    return (x.float() / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def dequantize_heads(x: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(dtype, torch.float32)
    return (x.to(wide) * scales.unsqueeze(-1)).to(dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [rows, columns] in FP8, and the scales [rows, 1]."""
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / FP8_MAX).clamp(min=ROW_SCALE_MIN)
    return (wide / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale
