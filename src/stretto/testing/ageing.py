"""The ageing bound: how often a waiting request may be overtaken, and the books to check it.

A request that finds r older ones waiting is admitted within 4 (r + 1) first admissions; admissions while it
was deferred, or while its media were encoded or its adapters loaded, do not count. The scheduler needs no
such counts, so a queue of the test kit records them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.core.fairness import AGEING_PERIOD
from stretto.core.limits import Limits
from stretto.core.queue import Queue
from stretto.core.scheduler import Scheduler
from stretto.core.slot import Job, Status
from stretto.errors import InvariantError


@dataclass(slots=True)
class Wait:
    """How one request has waited for its first slot."""

    older: int  # requests that waited when it arrived
    admissions_before: int  # when it arrived; later admissions while it was deferred are added
    admissions: int = 0  # from its arrival to its own
    deferred_at: int = 0

    def bound(self, job: Job) -> int:
        return AGEING_PERIOD * (self.older + 1 + job.deferrals + bool(job.request.needs))


class RecordingQueue(Queue):
    """The scheduler's queue, with a record of every wait."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.waits: dict[str, Wait] = {}

    def push(self, job: Job, now: float) -> None:
        self.waits[job.id] = Wait(self.size, self.admissions)
        super().push(job, now)

    def ready(self, job: Job, now: float) -> None:
        super().ready(job, now)
        self.waits[job.id].admissions_before = self.admissions

    def admit(self, job: Job, now: float, *, counted: bool = True) -> None:
        first = job.status is not Status.PREEMPTED
        super().admit(job, now, counted=counted)
        if first:
            wait = self.waits[job.id]
            wait.admissions = self.admissions - wait.admissions_before

    def defer(self, job: Job) -> None:
        super().defer(job)
        self.waits[job.id].deferred_at = self.admissions

    def resume(self, job: Job) -> None:
        super().resume(job)
        wait = self.waits[job.id]
        wait.admissions_before += self.admissions - wait.deferred_at

    def check(self, job: Job) -> None:
        """Raises where a request that got its first slot was overtaken too often."""
        wait = self.waits[job.id]
        if wait.admissions > wait.bound(job):
            raise InvariantError(
                f"{job.id} was overtaken: {wait.admissions} admissions, the bound is {wait.bound(job)}"
            )


def record_waits(scheduler: Scheduler) -> RecordingQueue:
    """Give a new scheduler a queue that records waits."""
    state = scheduler.state
    state.queue = queue = RecordingQueue(state.limits)
    return queue
