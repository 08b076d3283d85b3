"""Programmatic dependent launch (PDL): a kernel may start before its predecessor ends, if enabled.

A participating kernel allows the launch of the next one at its start, or late; it reads what no layer writes
(weights, the inputs of the pass), then waits until its predecessor has ended and its writes are visible.
Every kernel launched this way must wait, so that by induction all earlier ones have ended; those that write
the inputs are launched without it, before all others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.pdl_mode import PDL_STATE

__all__ = ["PDL_STATE", "launch_dependents", "launch_dependents_late", "launch_options", "wait_for_previous"]


@triton.jit
def launch_dependents(MODE: tl.constexpr):
    """At the start of a kernel."""
    if MODE == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def launch_dependents_late(MODE: tl.constexpr):
    """After the last load of a kernel."""
    if MODE == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(MODE: tl.constexpr):
    if MODE > 0:
        tl.extra.cuda.gdc_wait()


def launch_options() -> dict[str, bool]:
    """For a participating kernel."""
    return {"launch_pdl": True} if PDL_STATE.mode else {}
