"""The rotary table: one row per position, the cosines of half a head, then the sines.

Knows the four context extension methods of the supported families. Computed once, in float64.
"""

from __future__ import annotations

import math

import torch

from stretto.backends.torch.config import Rope


def cos_sin_table(rope: Rope, *, head_dim: int, positions: int, device: torch.device) -> torch.Tensor:
    """[positions, head_dim] in float32."""
    frequencies, scale = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    table = torch.cat([angles.cos(), angles.sin()], dim=1) * scale
    return table.to(torch.float32).to(device)


def _frequencies(rope: Rope, head_dim: int) -> tuple[torch.Tensor, float]:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = rope.theta**-exponents
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "factors":
        return plain / torch.tensor(rope.factors, dtype=torch.float64), 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        scale = rope.attention_factor
        return _yarn(rope, plain, head_dim), 0.1 * math.log(rope.factor) + 1.0 if scale is None else scale
    return plain, 1.0


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Scales long wavelengths, keeps short ones, and interpolates in between."""
    waves = 2 * math.pi / plain
    low = rope.original_context / rope.low_freq_factor
    high = rope.original_context / rope.high_freq_factor
    smooth = (rope.original_context / waves - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(waves > low, plain / rope.factor, plain)
    return torch.where((waves <= low) & (waves >= high), between, stretched)


def _yarn(rope: Rope, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
    def dimension(count: float) -> float:
        return head_dim * math.log(rope.original_context / (count * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    steps = torch.arange(head_dim // 2, dtype=torch.float64)
    stretched = ((steps - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / rope.factor * stretched + plain * (1 - stretched)
