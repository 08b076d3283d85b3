"""Counters that let the programs of a launch detect the last one. Every kernel resets them to zero."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

COUNTERS_MIN = 1024


def block_counters(device: torch.device, count: int) -> Tensor:
    """At least `count` counters. Never freed: captured graphs keep using them."""
    return _counters(device, max(COUNTERS_MIN, 1 << (count - 1).bit_length()))


@cache
def _counters(device: torch.device, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
