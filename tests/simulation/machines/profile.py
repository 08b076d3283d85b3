"""How long the state machines run, and what they share.

`make test` runs a cut; STRETTO_PROVE=1 runs the size of the proof. Always the same examples, so that a red
run is red again. A failure is shown as it was found; STRETTO_SHRINK=1 takes minutes to make it small.
"""

from __future__ import annotations

import os
import random
from array import array

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from stretto.core.fairness import Account
from stretto.core.request import Request, SamplingParams
from stretto.core.slot import Job
from stretto.testing.strategies import text

PROVE = os.environ.get("STRETTO_PROVE") == "1"
EXAMPLES, STEPS = (200, 50) if PROVE else (60, 40)
PHASES = tuple(Phase) if os.environ.get("STRETTO_SHRINK") == "1" else (Phase.generate,)

PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)

# Details of a step come from one drawn number: hypothesis shortens the steps, the dice keep them varied.
DICE = st.integers(0, 1 << 20).map(random.Random)


def draw_job(dice: random.Random, number: int) -> Job:
    """A prompt of a system part that many share and a message in few variants: prefixes in common abound."""
    system = dice.choice((0, 5, 12, 12))
    tokens = array("i", text(system, 1) + text(dice.randint(1, 14), dice.choice((2, 2, 3))))
    tenant = dice.choice(("a", "a", "a", "b"))
    boundaries = tuple(sorted({n for n in (system, len(tokens) - 1) if 0 < n < len(tokens)}))
    request = Request(
        f"r{number}", tokens, SamplingParams(max_tokens=200), boundaries=boundaries, tenant=tenant
    )
    return Job(request, arrival=number, account=Account(tenant, 1.0), now=0.0, length_max=1 << 20)
