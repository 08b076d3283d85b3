"""Which running request loses its slot: pure choices. `State.preempt` carries them out.

The oldest running request is protected, so that admitted requests end one after the other. It yields only to
a strictly more urgent request and, like every victim of priority, only after progress in this residency: at
least one token, or `priority_preempt_min_tokens` if it was preempted often or got its slot in an ageing
admission. So under any stream of urgent requests every residency advances, preempted requests resume
(`Queue.next_preempted`), and every admitted request ends. Requests of equal priority never take each other's
slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.limits import Limits
from stretto.core.slot import Slot


def yields_to(slot: Slot, priority: int) -> bool:
    """Whether the slot's request yields to this priority: it is less urgent and has made progress."""
    job = slot.job
    return job is not None and job.priority > priority and slot.computed - slot.started_at >= slot.tokens_min


def for_priority(running: Sequence[Slot], oldest: Slot | None, priority: int, limits: Limits) -> list[Slot]:
    """Slots that yield to this priority, first victim first: the lowest class, its oldest running one last.

    Within a class first those that have computed `priority_preempt_min_tokens` in this residency, then those
    whose tenant was served most, then the youngest.
    """

    def key(slot: Slot) -> tuple[int, bool, bool, float, int]:
        priority, served, arrival = _job_key(slot)
        settled = slot.computed - slot.started_at >= limits.priority_preempt_min_tokens
        return (priority, slot is not oldest, settled, served, arrival)

    return sorted((s for s in running if yields_to(s, priority)), key=key, reverse=True)


def for_memory(running: Sequence[Slot], oldest: Slot | None, needy: Slot) -> Slot | None:
    """A request that is not more urgent: the lowest class, fewest preemptions, most served, youngest.

    The needy request itself comes after these. Only the oldest running one, which must advance, takes memory
    from more urgent requests, and only while it has not advanced in this residency.
    """
    priority = needy.priority
    others = [s for s in running if s is not needy]
    able = [s for s in others if s.priority >= priority and (s is not oldest or yields_to(s, priority))]
    if not able and needy is oldest:
        if any(yields_to(needy, s.priority) for s in others):
            return needy
        able = others
    if not able:
        return needy if needy is not oldest else None

    def key(slot: Slot) -> tuple[int, bool, int, float, int]:
        priority, served, arrival = _job_key(slot)
        return (priority, slot is not oldest, -_preemptions(slot), served, arrival)

    return max(able, key=key)


def held_s(slot: Slot, now: float) -> float:
    """How long it has held a slot, not interrupted by time slices of others."""
    return now - slot.started_s + slot.job.held_s if slot.job is not None else 0.0


def _job_key(slot: Slot) -> tuple[int, float, int]:
    job = slot.job
    assert job is not None
    return (job.priority, job.account.served, job.arrival)


def _preemptions(slot: Slot) -> int:
    """How often it was preempted; time slices do not count."""
    return slot.job.preemptions - slot.job.slice_preemptions if slot.job is not None else 0
