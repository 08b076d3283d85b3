"""How many replicas: by the predicted backlog in seconds against the wait that is allowed.

Up: the backlog of all replicas, shared by more of them, must be within `allowed_wait_s`. It has to stay above
that for `up_delay_s`, and a step at most doubles the number. Requests that were refused or waited in vain ask
for one replica more, whatever the prediction says. Down: only when for `down_delay_s` neither the
backlog nor the busy slots (at `busy_max` of those that would be left) needed the replicas that go. A step of
either kind restarts both delays. So a constant load does not make the number swing.

Pure: the state goes in and comes out, for controllers that keep it elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stretto.core.backlog import Backlog


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """`idle_to_zero_s` matters with a floor of 0: how long nothing may run before the last replica goes."""

    floor: int = 1
    ceiling: int = 8
    allowed_wait_s: float = 2.0
    busy_max: float = 0.7
    up_delay_s: float = 5.0
    down_delay_s: float = 120.0
    idle_to_zero_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.ceiling or self.ceiling < 1:
            raise ValueError("floor is at least 0 and at most ceiling, which is at least 1")
        if self.allowed_wait_s <= 0.0 or not 0.0 < self.busy_max <= 1.0:
            raise ValueError("allowed_wait_s is positive, and busy_max between 0 and 1")


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What a decision remembers: since when more or fewer replicas would do, and the most needed since."""

    above_since_s: float | None = None
    below_since_s: float | None = None
    below_most: int = 0
    idle_since_s: float | None = None


def needed(policy: ScalingPolicy, backlogs: Sequence[Backlog], waiting: int = 0) -> tuple[int, int]:
    """Replicas that the backlog asks for, and those that it and the busy slots ask for.

    `waiting`: requests that wait at the gates because no replica takes them.
    """
    late_s = sum(backlog.wait_s for backlog in backlogs)
    for_wait = math.ceil(late_s / policy.allowed_wait_s - 1e-9)
    slots = max((backlog.slots for backlog in backlogs), default=1)
    busy = sum(backlog.occupied for backlog in backlogs) + waiting
    for_slots = math.ceil(busy / (slots * policy.busy_max) - 1e-9)
    if waiting:
        for_wait = max(for_wait, 1)
    return for_wait, max(for_wait, for_slots)


def decide(
    policy: ScalingPolicy,
    state: ScalingState,
    *,
    replicas: int,
    backlogs: Sequence[Backlog],
    now: float,
    waiting: int = 0,
    missed: float = 0.0,
) -> tuple[int, ScalingState]:
    """The number of replicas to have from now on. `replicas`: the number that was decided on before.

    `missed`: requests of the last seconds that were refused or waited too long.
    """
    up, down = needed(policy, backlogs, waiting)
    if missed > 0.0:
        up, down = max(up, replicas + 1), max(down, replicas + 1)
    if replicas < max(policy.floor, 1 if waiting else 0):
        return max(policy.floor, 1), ScalingState()
    if replicas > policy.ceiling:
        return policy.ceiling, ScalingState()
    state = _observed(state, replicas, up, down, now)
    if state.above_since_s is not None and now - state.above_since_s >= policy.up_delay_s:
        target = min(policy.ceiling, up, 2 * replicas)
        return (target, ScalingState()) if target > replicas else (replicas, state)
    least = max(policy.floor, 1)
    if state.below_since_s is not None and now - state.below_since_s >= policy.down_delay_s:
        target = max(least, state.below_most)
        if target < replicas:
            return target, ScalingState(idle_since_s=state.idle_since_s)
    idle_s = now - state.idle_since_s if state.idle_since_s is not None else 0.0
    if policy.floor == 0 and replicas == 1 and idle_s >= policy.idle_to_zero_s:
        return 0, ScalingState()
    return replicas, state


def _observed(state: ScalingState, replicas: int, up: int, down: int, now: float) -> ScalingState:
    """Delays start over whenever the reason for them is not there."""
    if up > replicas:
        above = state.above_since_s if state.above_since_s is not None else now
        return ScalingState(above_since_s=above)
    state = replace(state, above_since_s=None)
    if down >= replicas and down > 0:
        return ScalingState()
    if state.below_since_s is None:
        state = replace(state, below_since_s=now, below_most=down)
    state = replace(state, below_most=max(state.below_most, down))
    if down == 0:
        return state if state.idle_since_s is not None else replace(state, idle_since_s=now)
    return replace(state, idle_since_s=None)
