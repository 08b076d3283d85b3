"""`policy.scaling` as an autoscaling policy of Ray Serve: called by its controller about ten times a second.

Ray pickles this module by value, so that it holds nothing but this class.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stretto.cluster.policy.scaling import ScalingPolicy, ScalingState, decide
from stretto.core.backlog import Backlog

STATE, MISSED = "stretto", "missed"


class BacklogScaling:
    """`policy`: the fields of `ScalingPolicy`."""

    def __init__(self, **policy: Any) -> None:
        self._policy = ScalingPolicy(**policy)

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        state = ScalingState(**ctx.policy_state.get(STATE, {}))
        target, state = decide(
            self._policy,
            state,
            replicas=ctx.target_num_replicas,
            backlogs=backlogs(ctx.aggregated_metrics or {}),
            now=ctx.current_time,
            waiting=int(ctx.total_queued_requests or 0),
            missed=sum((ctx.aggregated_metrics or {}).get(MISSED, {}).values()),
        )
        return target, {STATE: asdict(state)}


def stats_of_backlog(backlog: Backlog, missed: int) -> dict[str, float]:
    """What a replica records (`record_autoscaling_stats`), and `backlogs` reads."""
    return {**{name: float(value) for name, value in backlog._asdict().items()}, MISSED: float(missed)}


def backlogs(metrics: dict[str, dict[Any, float]]) -> list[Backlog]:
    """One for each replica that has recorded all of its numbers."""
    columns = [metrics.get(name, {}) for name in Backlog._fields]
    known = [replica for replica in columns[0] if all(replica in column for column in columns)]
    found = [[column[replica] for column in columns] for replica in known]
    return [Backlog(round(slots), round(occupied), *times) for slots, occupied, *times in found]
