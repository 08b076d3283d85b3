"""Requests that wait: their order, their limits, and how long at most.

One ordered list with two limits. The first `n_seq_max * queue_depth` requests of a priority, those in slots
included, have *entered* and are in flight. The rest are callers that wait to enter, at most `max_queue` of
each priority and for at most `max_queue_wait_s`. Limits hold per priority, so that background work cannot
lock out urgent work. Submitting never blocks: a request is accepted or refused.

Order of first admission: priority, then the tenant's counter, then arrival; but every fourth admission goes
to the oldest waiting request of any class (ageing), which bounds every wait without a clock. Preempted
requests resume first unless a strictly more urgent one waits, or, for time-sliced ones, one that precedes
them in the order. A deferred request is skipped until what it waits for is over. A request whose media are
being encoded, or whose adapters are being loaded, is in no line; once they are, it has the place of its
arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nsmallest
from itertools import chain

from stretto.core.fairness import AGEING_PERIOD
from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Job, Status

PRUNE_SLACK = 64


class Queue:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lines: dict[tuple[int, str], deque[Job]] = {}  # (priority, tenant) -> first come, first served
        self._by_age: deque[Job] = deque()
        self._streaming: list[Job] = []  # of these, streamed ones that are not background work
        self._callers: list[deque[Job]] = [deque() for _ in Priority]  # not entered yet, oldest first
        self._entered = [0 for _ in Priority]  # in flight, slots included
        self._waiting = [0 for _ in Priority]  # callers that have not entered
        self.unready: list[Job] = []  # what they need is not there yet
        self.deferred: list[Job] = []
        self.preempted: list[Job] = []  # by arrival
        self.admissions = 0  # first admissions, and resumed time slices, which take slots as these do
        self._aged_at = 0  # how many there were when a preempted request last passed a more urgent one
        self.size = 0  # unready, waiting or deferred, preempted not included

    # --- coming in -------------------------------------------------------------------------------

    def has_place(self, priority: int) -> bool:
        return (
            self._entered[priority] < self._limits.in_flight_max
            or self._waiting[priority] < self._limits.max_queue
        )

    def push(self, job: Job, now: float) -> None:
        if job.status is Status.UNREADY:
            self.unready.append(job)
        else:
            self._lines.setdefault((job.priority, job.account.tenant), deque()).append(job)
            self._by_age.append(job)
            self._add_streaming(job)
        self.size += 1
        if max(len(self._by_age), len(self._streaming)) > 2 * self.size + PRUNE_SLACK:
            self._prune()
        if self._entered[job.priority] < self._limits.in_flight_max:
            self._enter(job, now)
        else:
            self._callers[job.priority].append(job)
            self._waiting[job.priority] += 1

    def _add_streaming(self, job: Job) -> None:
        if job.request.streamed and job.priority != Priority.BACKGROUND:
            self._streaming.append(job)

    def ready(self, job: Job, now: float) -> None:
        """It has all it needs: from now on it waits for a slot, in the place of its arrival."""
        self.unready.remove(job)
        job.status = Status.WAITING
        if job.entered_s is not None:
            job.entered_s = now  # the time-out for a slot does not count the time until then
        self._line_up(job)
        self._add_streaming(job)

    def _enter(self, job: Job, now: float) -> None:
        job.entered_s = now
        self._entered[job.priority] += 1

    def leave_flight(self, job: Job, now: float) -> None:
        """A request has ended: the next caller of its priority enters."""
        if job.entered_s is None:
            self._waiting[job.priority] -= 1
            return
        self._entered[job.priority] -= 1
        self._sweep(job.priority)
        callers = self._callers[job.priority]
        while callers and self._entered[job.priority] < self._limits.in_flight_max:
            caller = min(callers, key=lambda j: j.arrival)
            callers.remove(caller)
            self._waiting[job.priority] -= 1
            self._enter(caller, now)

    # --- going out -------------------------------------------------------------------------------

    @property
    def is_ageing_admission(self) -> bool:
        return self.admissions % AGEING_PERIOD == AGEING_PERIOD - 1

    def next_first(self) -> Job | None:
        """The next request to run for the first time; an ageing admission goes to the oldest."""
        if self.is_ageing_admission:
            return self._oldest()
        best: Job | None = None
        for line in list(self._lines):
            head = self._head(line)
            if head is not None and (best is None or order(head) < order(best)):
                best = head
        return best

    def next_preempted(self) -> Job | None:
        """The oldest preempted request, unless a strictly more urgent one waits.

        Those preempted for a time slice come after the others, in the queue's order. Preempted requests age,
        too: after every fourth admission one of them resumes before more urgent requests that wait.
        """
        if not self.preempted:
            return None
        first = self.next_urgent()
        if first is None:
            return min(self.preempted, key=_order_back)
        aged = self.admissions - self._aged_at >= AGEING_PERIOD
        able = [job for job in self.preempted if aged or job.priority <= first.priority]
        return min(able, key=_order_back, default=None)

    def next_urgent(self) -> Job | None:
        """The first of the most urgent class that waits."""
        heads = [head for line in list(self._lines) if (head := self._head(line)) is not None]
        return min(heads, key=lambda j: (j.priority, j.arrival), default=None)

    def most_urgent(self) -> int | None:
        """The most urgent priority that waits for a slot, preempted requests included."""
        first = self.next_urgent()
        priorities = [job.priority for job in self.preempted]
        return min([*priorities, first.priority] if first is not None else priorities, default=None)

    def contenders(self, count: int) -> list[Job]:
        """The first requests that wait for a slot: by class, preempted ones first, then in order."""
        waiting = (job for job in self._by_age if job.status is Status.WAITING)
        return nsmallest(count, chain(self.preempted, waiting), key=_contends)

    def streaming(self, count: int) -> list[Job]:
        """The first streamed requests that wait, background work excluded."""
        self._streaming = [job for job in self._streaming if _waits(job)]
        return nsmallest(count, (job for job in self._streaming if job.status is Status.WAITING), key=order)

    def admit(self, job: Job, now: float, *, counted: bool = True) -> None:
        """The job leaves the queue for a slot; not `counted` where it was taken from another request."""
        overtakes = job.entered_s is None
        if job.status is Status.PREEMPTED:
            self.preempted.remove(job)
            self.admissions += counted and job.time_sliced and not self.is_ageing_admission
            first = self.next_urgent()
            if first is not None and job.priority > first.priority:
                self._aged_at = self.admissions
        else:
            self._take(job)
            self.admissions += counted
            if overtakes:
                self._waiting[job.priority] -= 1
                self._enter(job, now)
        job.status = Status.RUNNING
        if overtakes and self._entered[job.priority] > self._limits.in_flight_max:
            self._step_back(job.priority, now)

    def _step_back(self, priority: int, now: float) -> None:
        """A caller overtook entered requests: the youngest of these becomes a caller again."""
        entered = [j for j in (*self.waiting(), *self.deferred, *self.unready) if j.entered_s is not None]
        last = max((j for j in entered if j.priority == priority), key=lambda j: j.arrival, default=None)
        if last is not None:
            last.entered_s, last.caller_since_s = None, now
            self._entered[last.priority] -= 1
            self._waiting[last.priority] += 1
            self._callers[last.priority].append(last)

    def remove(self, job: Job) -> None:
        """The job ends without running (any more)."""
        if job.status is Status.PREEMPTED:
            self.preempted.remove(job)
        elif _waits(job):
            self._take(job)

    def _take(self, job: Job) -> None:
        if job.status is Status.DEFERRED:
            self.deferred.remove(job)
        elif job.status is Status.UNREADY:
            self.unready.remove(job)
        self.size -= 1

    # --- preempted and deferred -----------------------------------------------------------------------

    def add_preempted(self, job: Job) -> None:
        if not self.preempted:
            self._aged_at = self.admissions
        job.status = Status.PREEMPTED
        self.preempted.append(job)
        self.preempted.sort(key=lambda j: j.arrival)

    def defer(self, job: Job) -> None:
        if job.status is Status.PREEMPTED:
            return  # it keeps its place: preempted requests are asked again each tick
        job.status = Status.DEFERRED
        job.deferrals += 1
        self.deferred.append(job)

    def resume(self, job: Job) -> None:
        """The job no longer waits for a prefix: it returns to its place by arrival."""
        self.deferred.remove(job)
        job.status = Status.WAITING
        job.wait_for = None
        self._line_up(job)

    def _line_up(self, job: Job) -> None:
        _insert(self._lines.setdefault((job.priority, job.account.tenant), deque()), job)
        _insert(self._by_age, job)

    # --- looking ---------------------------------------------------------------------------------

    def entered(self, priority: int) -> int:
        return self._entered[priority]

    def callers(self, priority: int) -> int:
        return self._waiting[priority]

    def late_callers(self, now: float) -> list[Job]:
        """Callers that have waited too long to enter. Oldest first within each priority."""
        wait_s = self._limits.max_queue_wait_s
        if wait_s is None:
            return []
        for priority in Priority:
            self._sweep(priority)
        return [job for job in chain(*self._callers) if now >= job.caller_since_s + wait_s]

    def next_timeout_s(self) -> float | None:
        """When the first caller will have waited too long."""
        wait_s = self._limits.max_queue_wait_s
        if wait_s is None:
            return None
        for priority in Priority:
            self._sweep(priority)
        return min((job.caller_since_s + wait_s for job in chain(*self._callers)), default=None)

    def waiting(self) -> Iterator[Job]:
        """Waiting requests that are not deferred, oldest first."""
        return (job for job in self._by_age if job.status is Status.WAITING)

    def _head(self, line: tuple[int, str]) -> Job | None:
        jobs = self._lines[line]
        while jobs and jobs[0].status is not Status.WAITING:
            jobs.popleft()
        if not jobs:
            del self._lines[line]
            return None
        return jobs[0]

    def _oldest(self) -> Job | None:
        while self._by_age and self._by_age[0].status is not Status.WAITING:
            self._by_age.popleft()
        return self._by_age[0] if self._by_age else None

    def _prune(self) -> None:
        """Jobs leave the middle of a line by changing their status; remove them now and then."""
        self._by_age = deque(job for job in self._by_age if job.status is Status.WAITING)
        self._streaming = [job for job in self._streaming if _waits(job)]
        for line, jobs in list(self._lines.items()):
            self._lines[line] = deque(job for job in jobs if job.status is Status.WAITING)
            self._head(line)
        for priority in Priority:
            self._sweep(priority)

    def _sweep(self, priority: int) -> None:
        """Remove callers that have entered or ended."""
        callers = self._callers[priority]
        if any(job.entered_s is not None or not _waits(job) for job in callers):
            self._callers[priority] = deque(job for job in callers if job.entered_s is None and _waits(job))


def _waits(job: Job) -> bool:
    return job.status in (Status.WAITING, Status.DEFERRED, Status.UNREADY)


def order(job: Job) -> tuple[int, float, int]:
    return (job.priority, job.account.served, job.arrival)


def _contends(job: Job) -> tuple[int, bool, float, int]:
    return (job.priority, job.status is not Status.PREEMPTED, job.account.served, job.arrival)


def _order_back(job: Job) -> tuple[bool, int, float, int]:
    return (job.time_sliced, *(order(job) if job.time_sliced else (0, 0.0, job.arrival)))


def _insert(line: deque[Job], job: Job) -> None:
    """Insert by arrival. A line may still hold this job from before it was deferred."""
    if job in line:
        return
    at = next((i for i, other in enumerate(line) if other.arrival > job.arrival), len(line))
    line.insert(at, job)
