"""Whether kernels may begin before their predecessors end. Set for a pass, read as its kernels are launched.

Worth it for a single row of a small model: its kernels take a few microseconds each, and their weights load
while the one before ends (Qwen3-0.6B on an H200: 0.85 ms a token becomes 0.75). Kernels of a large model fill
the machine by themselves, and the early loads get in their way (Qwen3-8B: 4.2 ms becomes 4.8).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ROWS_MAX = 1
HIDDEN_MAX = 2048


@dataclass(slots=True)
class Overlap:
    enabled: bool = False


OVERLAP = Overlap()


@contextmanager
def overlapping(rows: int, hidden: int) -> Iterator[None]:
    OVERLAP.enabled = rows <= ROWS_MAX and hidden <= HIDDEN_MAX
    try:
        yield
    finally:
        OVERLAP.enabled = False
