"""Whether kernels may begin before their predecessors end. Set for a pass, read as its kernels are launched.

Early is worth it for a single row of a small model: its kernels take a few microseconds each, and their
weights load while the one before ends (Qwen3-0.6B on an H200: 0.85 ms a token becomes 0.75). Kernels of a
large model fill the machine by themselves, and early loads get in their way (Qwen3-8B: 4.2 ms becomes 4.8);
with a few rows the next one is let in late, when there is nothing left to load.
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
HIDDEN_EARLY = 2048  # a model of this width is small


@dataclass(slots=True)
class Overlap:
    mode: int = OFF


OVERLAP = Overlap()


@cache
def _supported() -> bool:
    """From Hopper on a kernel can wait for the one before it."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@contextmanager
def overlapping(rows: int, hidden: int) -> Iterator[None]:
    if not _supported():
        OVERLAP.mode = OFF
    elif hidden <= HIDDEN_EARLY:
        OVERLAP.mode = EARLY if rows <= ROWS_EARLY else OFF
    else:
        OVERLAP.mode = LATE if ROWS_EARLY < rows <= ROWS_LATE else OFF
    try:
        yield
    finally:
        OVERLAP.mode = OFF
