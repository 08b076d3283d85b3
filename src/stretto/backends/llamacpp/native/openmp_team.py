"""Gives up the threads that OpenMP keeps for the calling thread.

libgomp keeps a team for each thread that ever computed, and counts the threads of all teams. Once there are
more than processors, its barriers sleep instead of spinning. So the team of a model without work would cost
each pass of another model in the process up to a third of its speed. The next pass starts a new team, which
takes some tens of microseconds.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

SOFT = 1  # omp_pause_soft: what the program has set remains


def release_team() -> None:
    """Not within a pass. Does nothing where llama.cpp computes without libgomp, or with one that cannot."""
    pause = _pause()
    if pause is not None:
        pause(SOFT)


@cache
def _pause() -> Any:
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD).omp_pause_resource_all
    except (OSError, AttributeError):
        return None
