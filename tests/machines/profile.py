"""How long the state machines run, and what they share.

`make test` runs a cut; STRETTO_PROVE=1 runs the size of the proof. Always the same examples, so that a red
run is red again. STRETTO_NO_SHRINK=1 stops at the first failure as it is found (for planted defects).
"""

from __future__ import annotations

import os
from array import array

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from stretto.core.fairness import Account
from stretto.core.request import Request, SamplingParams
from stretto.core.slot import Job
from stretto.testing.strategies import text

PROVE = os.environ.get("STRETTO_PROVE") == "1"
EXAMPLES, STEPS = (200, 50) if PROVE else (60, 40)
PHASES = (Phase.generate,) if os.environ.get("STRETTO_NO_SHRINK") == "1" else tuple(Phase)

PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)

TENANTS = st.sampled_from(("a", "a", "b"))


def make_job(
    number: int, *, system: int, message: int, variant: int, tenant: str, seniority: int | None = None
) -> Job:
    """A prompt of a system part that many share and a message in few variants: prefixes in common abound."""
    system_tokens = text(system, 1)
    tokens = array("i", system_tokens + text(message, 2 + variant))
    boundaries = tuple(sorted({n for n in (system, len(tokens) - 1) if 0 < n < len(tokens)}))
    request = Request(
        f"r{number}", tokens, SamplingParams(max_tokens=200), boundaries=boundaries, tenant=tenant
    )
    return Job(
        request,
        seniority=number if seniority is None else seniority,
        account=Account(tenant, 1.0),
        now=0.0,
        length_max=1 << 20,
    )
