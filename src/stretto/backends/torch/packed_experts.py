"""Experts as gpt-oss's files store them: MXFP4 blocks, or transposed matrices; gate and up rows alternate.

MXFP4 has blocks of 32 numbers of four bits (sign, two bits of exponent, one of mantissa) with a common power
of two. A byte holds two of them, the first in its low half. They are widened when a model is loaded: every
such number is exact in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCK = 32
EXPONENT_BIAS = 127


def widened_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks uint8 [..., count, 16], scales uint8 [..., count]: bfloat16 [..., count · 32]."""
    levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], dtype=torch.bfloat16)
    pairs = torch.stack([levels.repeat(16), levels.repeat_interleave(16)], dim=1)  # of each byte
    numbers = functional.embedding(blocks.int(), pairs).flatten(-2)
    made = torch.ldexp(numbers, (scales.int() - EXPONENT_BIAS).unsqueeze(-1))
    return made.to(torch.bfloat16).flatten(-2)


def part_rows(projection: str) -> slice:
    """The rows of a stored matrix that are the gates, the ups, or the whole down projection."""
    return {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}.get(projection, slice(None))


def separated(x: Tensor) -> Tensor:
    """Alternating gates and ups in the last dimension: all gates, then all ups."""
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)
