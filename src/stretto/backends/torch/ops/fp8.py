"""FP8 (e4m3) numbers with float32 scales: of K and V for each head of a layer, of matrices for each row.

The largest magnitude of a row of activations becomes 448, the largest FP8 number. Scales of heads are
measured when a model is loaded, with room for larger ones; what exceeds it is clamped. Of weights, each row
has the scale that loses least: the steps between FP8 numbers repeat with every factor of 2, so one octave is
searched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
KV_ROOM = 4.0  # how many times the measured magnitude a key or value can have
ROW_SCALE_MIN = 1e-12
SCALES_TRIED = 16  # in one octave
PART_NUMBERS = 1 << 24  # of a matrix quantized at a time: its float32 copies are temporary


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
        rows = matrix.flatten(0, -2)
        parts = torch.split(rows, max(PART_NUMBERS // rows.shape[1], 1))
        found = [quantize_weights(part) for part in parts]
        data = torch.cat([part.view(torch.uint8) for part, _ in found]).view(FP8)
        scales = torch.cat([scale for _, scale in found])
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
    scale = scale_of_rows(wide)
    return (wide / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def scale_of_rows(wide: Tensor) -> Tensor:
    """Scales [rows, 1] with which the largest magnitude of each row is the largest FP8 number."""
    return (wide.abs().amax(-1, keepdim=True) / FP8_MAX).clamp(min=ROW_SCALE_MIN)


def quantize_weights(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize_rows`, with the scale of the least squared error for each row.

    Each try rounds with one scale, and then takes the scale that fits the rounded row best.
    """
    wide = x.float()
    start = scale_of_rows(wide)
    data = torch.zeros_like(wide, dtype=FP8)
    scale, most = start, torch.full_like(start, -1.0)  # of the squared length, how much is kept
    for factor in torch.logspace(0, 1, SCALES_TRIED + 1, base=2)[:-1].tolist():
        tried = (wide / (start * factor)).clamp(-FP8_MAX, FP8_MAX).to(FP8)
        numbers = tried.float()
        along, squares = (wide * numbers).sum(-1, keepdim=True), numbers.square().sum(-1, keepdim=True)
        fitting = torch.where(squares > 0, along / squares, start)
        kept = along * fitting
        better = kept > most
        most, scale = torch.where(better, kept, most), torch.where(better, fitting, scale)
        data = torch.where(better, tried.view(torch.uint8), data.view(torch.uint8)).view(FP8)
    return data, scale
