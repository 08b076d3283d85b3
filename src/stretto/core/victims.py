"""Who gives way: pure choices among running slots. The scheduler carries them out.

Never the anchor for memory or priority, so the most senior request always ends, then the next one: every
admitted request ends. A victim is parked and continued later, unless `preemption: fail` says otherwise
for slot time-outs.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.limits import Limits
from stretto.core.slot import Slot


def _job_key(slot: Slot) -> tuple[int, float, int]:
    job = slot.job
    assert job is not None
    return (job.level, job.account.served, job.seniority)


def for_memory(running: Sequence[Slot], anchor: Slot | None, needy: Slot) -> Slot | None:
    """Fewest parks, lowest priority, most over its share, youngest. The needy one itself comes last."""
    others = [s for s in running if s is not anchor and s is not needy]
    if not others:
        return needy if needy is not anchor else None
    return max(others, key=lambda s: (-_parks(s), *_job_key(s)))


def for_priority(running: Sequence[Slot], anchor: Slot | None, level: int, limits: Limits) -> Slot | None:
    """A strictly lower class, the lowest first, after some progress, and not too often.

    Within a class rather one who had `priority_park_min_tokens` since it got its slot; but who is more urgent
    does not wait for that: how often somebody is parked is bounded anyway.
    """
    able = [
        s
        for s in running
        if s is not anchor
        and s.job is not None
        and s.job.level > level
        and _parks(s) < limits.priority_parks_max
        and s.computed > s.started_at
    ]

    def key(slot: Slot) -> tuple[int, bool, float, int]:
        level, served, seniority = _job_key(slot)
        settled = slot.computed - slot.started_at >= limits.priority_park_min_tokens
        return (level, settled, served, seniority)

    return max(able, key=key, default=None)


def for_timeout(running: Sequence[Slot], now: float, limits: Limits) -> Slot | None:
    """The longest-running of those that had their full time and used it."""
    able = [s for s in running if had_its_time(s, now, limits)]
    return max(able, key=lambda s: (held_s(s, now), -s.index), default=None)


def had_its_time(slot: Slot, now: float, limits: Limits) -> bool:
    """It ran for the whole time-out, and got further than ever before: so a round robin still advances."""
    if held_s(slot, now) < limits.cache_slot_timeout_s:
        return False
    return slot.computed > slot.started_at


def held_s(slot: Slot, now: float) -> float:
    """How long it has had a slot; a turn of somebody else does not begin it anew."""
    return now - slot.started_s + slot.job.held_s if slot.job is not None else 0.0


def _parks(slot: Slot) -> int:
    """How often it had to give way; turns are no sacrifice."""
    return slot.job.parks - slot.job.turns if slot.job is not None else 0
