"""Runs the probes of several candidates in turns, so that what disturbs the machine disturbs all of them.

A round is one pass of each. One during which the computing threads waited for a processor is thrown away and
repeated; so are all until the best times repeat, within the time that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stretto.backends.llamacpp.choices.decision import Question, Samples
from stretto.backends.llamacpp.native.cpu_pressure import Pressures

ROUNDS_MIN, ROUNDS_MAX = 3, 8
SETTLED = 1.05  # second best over best, below which nothing is gained by another round
DISTURBED_SHARE = 0.1  # of a round, that threads waited for a processor


class Arm(NamedTuple):
    """A pass that belongs to a candidate's probe; answers its seconds."""

    candidate: str
    probe: str
    run: Callable[[], float]


def run_rounds(
    arms: Sequence[Arm],
    questions: Sequence[Question],
    samples: Samples,
    *,
    pressures: Pressures | None,
    until_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Add the seconds of undisturbed rounds to `samples`, until they are settled or it is `until_s`."""
    kept = 0
    for _ in range(ROUNDS_MAX):
        started, found = clock(), list[tuple[Arm, float]]()
        for arm in arms:
            if clock() >= until_s:
                return
            found.append((arm, arm.run()))
        if not _is_disturbed(pressures, clock() - started):
            kept += 1
            for arm, seconds in found:
                samples.add(arm.candidate, arm.probe, seconds)
        if kept >= ROUNDS_MIN and all(samples.is_settled(one, SETTLED) for one in questions):
            return


def _is_disturbed(pressures: Pressures | None, took_s: float) -> bool:
    return pressures is not None and pressures.since(computing_s=took_s).waited_s >= DISTURBED_SHARE * took_s
