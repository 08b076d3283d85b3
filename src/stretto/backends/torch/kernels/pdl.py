"""Letting a kernel begin before its predecessor ends (programmatic dependent launch), where switched on.

A kernel that takes part says at its start, or late, that the next one may be put on the device, reads
whatever no kernel of the pass writes (weights), and then waits until its predecessor has ended and its writes
can be seen. Every kernel that is launched this way must wait, so that by induction all before it have ended.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.pdl_mode import OVERLAP

__all__ = ["OVERLAP", "launch_options", "start_next", "start_next_late", "wait_previous"]


@triton.jit
def start_next(MODE: tl.constexpr):
    """At the start of a kernel."""
    if MODE == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def start_next_late(MODE: tl.constexpr):
    """When there is nothing left to load."""
    if MODE == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_previous(MODE: tl.constexpr):
    if MODE > 0:
        tl.extra.cuda.gdc_wait()


def launch_options() -> dict[str, bool]:
    """For a kernel that takes part."""
    return {"launch_pdl": True} if OVERLAP.mode else {}
