"""Programmatic dependent launch: whether kernels may start before their predecessors end. Set per pass.

EARLY pays off for a single row of a small model: its kernels take a few microseconds each, and weights are
loaded while the previous kernel ends (Qwen3-0.6B on an H200: 0.85 → 0.75 ms per token). Kernels of a large
model fill the GPU by themselves, and early loads slow them down (Qwen3-8B: 4.2 → 4.8 ms); with a few rows the
next one is launched LATE, after the last load.
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
HIDDEN_EARLY = 2048  # models up to this width are small


@dataclass(slots=True)
class PdlState:
    mode: int = OFF


PDL_STATE = PdlState()


@cache
def _supported() -> bool:
    """PDL needs Hopper or newer."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@contextmanager
def pdl_for(rows: int, hidden: int) -> Iterator[None]:
    if not _supported():
        PDL_STATE.mode = OFF
    elif hidden <= HIDDEN_EARLY:
        PDL_STATE.mode = EARLY if rows <= ROWS_EARLY else OFF
    else:
        PDL_STATE.mode = LATE if ROWS_EARLY < rows <= ROWS_LATE else OFF
    try:
        yield
    finally:
        PDL_STATE.mode = OFF
