"""Counters by which the programs of a launch learn who is last. Every kernel leaves them at zero."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

COUNTERS_MIN = 1024


def arrivals(device: torch.device, count: int) -> Tensor:
    """At least `count` of them. Kept for good: a captured graph goes on using them."""
    return _counters(device, max(COUNTERS_MIN, 1 << (count - 1).bit_length()))


@cache
def _counters(device: torch.device, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
