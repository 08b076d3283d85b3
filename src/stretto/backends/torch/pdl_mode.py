"""Programmatic dependent launch: whether kernels may start before their predecessors end. Set per pass.

EARLY pays off for a single row of a small model: its kernels take a few microseconds each, and weights are
loaded while the previous kernel ends (an H200's layers for one token, Qwen3-0.6B: 0.86 → 0.72 ms; Qwen3-8B
with FP8 weights: 2.57 → 2.49). Kernels of a large model fill the GPU by themselves, and early loads slow them
down (Qwen3-8B: 4.0 → 4.5 ms); with a few rows the next one is launched LATE, after the last load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

OFF, EARLY, LATE = range(3)
ROWS_EARLY = 1
ROWS_LATE = 16
HIDDEN_SMALL = 2048  # models up to this width are small
ROW_BYTES_SMALL = 2 * HIDDEN_SMALL  # … and so are wider ones whose weights have one byte


@dataclass(slots=True)
class PdlState:
    mode: int = OFF


PDL_STATE = PdlState()


@cache
def _supported() -> bool:
    """PDL needs Hopper or newer."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def _mode(rows: int, hidden: int, row_bytes: int) -> int:
    if rows <= ROWS_EARLY:
        return EARLY if row_bytes <= ROW_BYTES_SMALL else OFF
    return LATE if hidden > HIDDEN_SMALL and rows <= ROWS_LATE else OFF


@contextmanager
def pdl_for(rows: int, hidden: int, *, weight_bytes: int) -> Iterator[None]:
    """`weight_bytes`: of one weight of a layer."""
    if _supported():
        PDL_STATE.mode = _mode(rows, hidden, hidden * weight_bytes)
    try:
        yield
    finally:
        PDL_STATE.mode = OFF
