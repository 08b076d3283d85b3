"""Which running request loses its slot: pure choices. `State.preempt` carries them out.

The oldest running request (the anchor) is protected, so that admitted requests end one after the other. It
yields only to a strictly more urgent request, and, as every other victim of priority, only after progress in
this residency: at least one token, `priority_park_min_tokens` where it was preempted often or got its slot in
an ageing turn. So with any stream of urgent requests every residency advances, residencies come back (see
`Queue.next_parked`), and every admitted request ends. Equal priorities never preempt each other for a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.limits import Limits
from stretto.core.slot import Slot


def yields_to(slot: Slot, level: int) -> bool:
    """Whether the slot's request gives way to a request of this level: less urgent, and it got further."""
    job = slot.job
    return job is not None and job.level > level and slot.computed - slot.started_at >= slot.tokens_min


def for_priority(running: Sequence[Slot], anchor: Slot | None, level: int, limits: Limits) -> list[Slot]:
    """All that yield to this level, the first to go first: the lowest class, the anchor last within it.

    Within a class rather one that has computed `priority_park_min_tokens` since it got its slot, then one
    whose tenant was served most, then the youngest.
    """

    def key(slot: Slot) -> tuple[int, bool, bool, float, int]:
        level, served, seniority = _job_key(slot)
        settled = slot.computed - slot.started_at >= limits.priority_park_min_tokens
        return (level, slot is not anchor, settled, served, seniority)

    return sorted((s for s in running if yields_to(s, level)), key=key, reverse=True)


def for_memory(running: Sequence[Slot], anchor: Slot | None, needy: Slot) -> Slot | None:
    """A request that is not more urgent: the lowest class, fewest preemptions, most served, youngest.

    The needy one itself comes after these. Only the anchor, which must advance, takes memory from more
    urgent requests, and only while it has not advanced in this residency.
    """
    level = _level(needy)
    others = [s for s in running if s is not needy]
    able = [s for s in others if _level(s) >= level and (s is not anchor or yields_to(s, level))]
    if not able and needy is anchor:
        if any(yields_to(needy, _level(s)) for s in others):
            return needy
        able = others
    if not able:
        return needy if needy is not anchor else None

    def key(slot: Slot) -> tuple[int, bool, int, float, int]:
        level, served, seniority = _job_key(slot)
        return (level, slot is not anchor, -_preemptions(slot), served, seniority)

    return max(able, key=key)


def held_s(slot: Slot, now: float) -> float:
    """How long it has had a slot; a time slice of another request does not begin it anew."""
    return now - slot.started_s + slot.job.held_s if slot.job is not None else 0.0


def _job_key(slot: Slot) -> tuple[int, float, int]:
    job = slot.job
    assert job is not None
    return (job.level, job.account.served, job.seniority)


def _level(slot: Slot) -> int:
    return slot.job.level if slot.job is not None else 0


def _preemptions(slot: Slot) -> int:
    """How often it was preempted; time slices do not count."""
    return slot.job.parks - slot.job.turns if slot.job is not None else 0
