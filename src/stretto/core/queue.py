"""Who waits, in which order, and for how long at most.

One ordered list with two limits. The first `n_seq_max * queue_depth` requests of a priority, those in slots
included, are *in flight*: they have entered. Those behind them are callers that wait to enter, at most
`max_queue` of each priority and for at most `max_queue_wait_s`. Bounds hold per priority, so that background
work cannot lock urgent work out. Submitting never blocks: it is accepted or refused.

Order of first admission: priority, then the tenant's counter, then seniority; but every fourth goes to the
most senior waiting request of any class. That is the ageing: it bounds every wait without a clock.
Parked requests go first unless a strictly more urgent one waits, or somebody whom they overtook to have a
turn. A deferred request stands aside, so it blocks nobody; it comes back when its reason is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nsmallest
from itertools import chain

from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Job, Where

AGEING_TURN = 4
PRUNE_SLACK = 64


class Queue:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lines: dict[tuple[int, str], deque[Job]] = {}  # (priority, tenant) -> first come, first served
        self._by_age: deque[Job] = deque()
        self._readers: list[Job] = []  # of these, who reads along and is in a hurry
        self._callers: list[deque[Job]] = [deque() for _ in Priority]  # not entered yet, oldest first
        self._entered = [0 for _ in Priority]  # in flight, slots included
        self._waiting = [0 for _ in Priority]  # callers that have not entered
        self.deferred: list[Job] = []
        self.parked: list[Job] = []  # by seniority
        self.admissions = 0  # first ones; and returns from a turn, which take slots as those do
        self._aged_at = 0  # how many there were when a parked request last passed a more urgent one
        self.size = 0  # waiting or deferred, parked not included

    # --- coming in -------------------------------------------------------------------------------

    def has_place(self, level: int) -> bool:
        return (
            self._entered[level] < self._limits.in_flight_max or self._waiting[level] < self._limits.max_queue
        )

    def push(self, job: Job, now: float) -> None:
        job.seniors_before = self.size
        job.admissions_before = self.admissions
        self._lines.setdefault((job.level, job.account.tenant), deque()).append(job)
        self._by_age.append(job)
        if job.request.streamed and job.level != Priority.BACKGROUND:
            self._readers.append(job)
        self.size += 1
        if max(len(self._by_age), len(self._readers)) > 2 * self.size + PRUNE_SLACK:
            self._prune()
        if self._entered[job.level] < self._limits.in_flight_max:
            self._enter(job, now)
        else:
            self._callers[job.level].append(job)
            self._waiting[job.level] += 1

    def _enter(self, job: Job, now: float) -> None:
        job.entered_s = now
        self._entered[job.level] += 1

    def leave_flight(self, job: Job, now: float) -> None:
        """A request has ended: the next caller of its priority enters."""
        if job.entered_s is None:
            self._waiting[job.level] -= 1
            return
        self._entered[job.level] -= 1
        self._sweep(job.level)
        callers = self._callers[job.level]
        while callers and self._entered[job.level] < self._limits.in_flight_max:
            caller = min(callers, key=lambda j: j.seniority)
            callers.remove(caller)
            self._waiting[job.level] -= 1
            self._enter(caller, now)

    # --- going out -------------------------------------------------------------------------------

    @property
    def is_ageing_turn(self) -> bool:
        return self.admissions % AGEING_TURN == AGEING_TURN - 1

    def next_first(self) -> Job | None:
        """Who is admitted next of those that never ran; the ageing turn goes to the most senior."""
        if self.is_ageing_turn:
            return self._oldest()
        best: Job | None = None
        for line in list(self._lines):
            head = self._head(line)
            if head is not None and (best is None or order(head) < order(best)):
                best = head
        return best

    def next_parked(self) -> Job | None:
        """The most senior parked request, unless somebody strictly more urgent waits.

        Those who only made room for a turn come behind the others, in the queue's order. Preempted requests
        have an ageing turn, too: after every fourth admission one of them passes more urgent ones that wait.
        """
        if not self.parked:
            return None
        first = self.next_urgent()
        if first is None:
            return min(self.parked, key=_order_back)
        aged = self.admissions - self._aged_at >= AGEING_TURN
        able = [job for job in self.parked if aged or job.level <= first.level]
        return min(able, key=_order_back, default=None)

    def next_urgent(self) -> Job | None:
        """The first of the most urgent class that waits."""
        heads = [head for line in list(self._lines) if (head := self._head(line)) is not None]
        return min(heads, key=lambda j: (j.level, j.seniority), default=None)

    def most_urgent(self) -> int | None:
        """The most urgent level that waits for a slot, preempted requests included."""
        first = self.next_urgent()
        levels = [job.level for job in self.parked]
        return min([*levels, first.level] if first is not None else levels, default=None)

    def contenders(self, count: int) -> list[Job]:
        """The first of all that wait for a slot: by class, preempted ones before others, by their order."""
        waiting = (job for job in self._by_age if job.where is Where.WAITING)
        return nsmallest(count, chain(self.parked, waiting), key=_contends)

    def readers(self, count: int) -> list[Job]:
        """The first ones who read along and wait; background work is in no hurry."""
        self._readers = [job for job in self._readers if _waits(job)]
        return nsmallest(count, (job for job in self._readers if job.where is Where.WAITING), key=order)

    def admit(self, job: Job, now: float, *, counted: bool = True) -> None:
        """The job leaves the queue for a slot. A slot taken away for it does not count as a turn."""
        overtakes = job.entered_s is None
        if job.where is Where.PARKED:
            self.parked.remove(job)
            self.admissions += counted and job.turned_out and not self.is_ageing_turn
            first = self.next_urgent()
            if first is not None and job.level > first.level:
                self._aged_at = self.admissions
        else:
            self._take(job)
            self.admissions += counted
            job.admissions_waited = self.admissions - job.admissions_before
            if overtakes:
                self._waiting[job.level] -= 1
                self._enter(job, now)
        job.where = Where.RUNNING
        if overtakes and self._entered[job.level] > self._limits.in_flight_max:
            self._step_back(job.level, now)

    def _step_back(self, level: int, now: float) -> None:
        """A caller overtook those who had entered: the last of them gives its place and waits as a caller."""
        entered = [j for j in (*self.waiting(), *self.deferred) if j.entered_s is not None]
        last = max((j for j in entered if j.level == level), key=lambda j: j.seniority, default=None)
        if last is not None:
            last.entered_s, last.caller_since_s = None, now
            self._entered[last.level] -= 1
            self._waiting[last.level] += 1
            self._callers[last.level].append(last)

    def remove(self, job: Job) -> None:
        """The job ends without running (any more)."""
        if job.where is Where.PARKED:
            self.parked.remove(job)
        elif job.where in (Where.WAITING, Where.DEFERRED):
            self._take(job)

    def _take(self, job: Job) -> None:
        if job.where is Where.DEFERRED:
            self.deferred.remove(job)
        self.size -= 1

    # --- standing aside --------------------------------------------------------------------------

    def park(self, job: Job) -> None:
        if not self.parked:
            self._aged_at = self.admissions
        job.where = Where.PARKED
        self.parked.append(job)
        self.parked.sort(key=lambda j: j.seniority)

    def defer(self, job: Job) -> None:
        if job.where is Where.PARKED:
            return  # it keeps its place: parked requests are asked again each tick
        job.where = Where.DEFERRED
        job.deferrals += 1
        job.deferred_at = self.admissions
        self.deferred.append(job)

    def resume(self, job: Job) -> None:
        """The reason to wait is gone: the job is back at its place, by seniority."""
        self.deferred.remove(job)
        job.where = Where.WAITING
        job.wait_for = None
        job.admissions_before += self.admissions - job.deferred_at
        _insert(self._lines.setdefault((job.level, job.account.tenant), deque()), job)
        _insert(self._by_age, job)

    # --- looking ---------------------------------------------------------------------------------

    def entered(self, level: int) -> int:
        return self._entered[level]

    def callers(self, level: int) -> int:
        return self._waiting[level]

    def late_callers(self, now: float) -> list[Job]:
        """Callers that have waited too long to enter. Oldest first within each priority."""
        wait_s = self._limits.max_queue_wait_s
        if wait_s is None:
            return []
        for level in Priority:
            self._sweep(level)
        return [job for job in chain(*self._callers) if now - job.caller_since_s >= wait_s]

    def next_timeout_s(self) -> float | None:
        """When the first caller will have waited too long."""
        wait_s = self._limits.max_queue_wait_s
        if wait_s is None:
            return None
        for level in Priority:
            self._sweep(level)
        return min((job.caller_since_s + wait_s for job in chain(*self._callers)), default=None)

    def waiting(self) -> Iterator[Job]:
        """Everybody who waits and is not deferred, oldest first."""
        return (job for job in self._by_age if job.where is Where.WAITING)

    def _head(self, line: tuple[int, str]) -> Job | None:
        jobs = self._lines[line]
        while jobs and jobs[0].where is not Where.WAITING:
            jobs.popleft()
        if not jobs:
            del self._lines[line]
            return None
        return jobs[0]

    def _oldest(self) -> Job | None:
        while self._by_age and self._by_age[0].where is not Where.WAITING:
            self._by_age.popleft()
        return self._by_age[0] if self._by_age else None

    def _prune(self) -> None:
        """Jobs leave from the middle of the lines by changing where they are; sweep them out now and then."""
        self._by_age = deque(job for job in self._by_age if job.where is Where.WAITING)
        self._readers = [job for job in self._readers if _waits(job)]
        for line, jobs in list(self._lines.items()):
            self._lines[line] = deque(job for job in jobs if job.where is Where.WAITING)
            self._head(line)
        for level in Priority:
            self._sweep(level)

    def _sweep(self, level: int) -> None:
        """Callers that have entered or ended are callers no more."""
        callers = self._callers[level]
        if any(job.entered_s is not None or not _waits(job) for job in callers):
            self._callers[level] = deque(job for job in callers if job.entered_s is None and _waits(job))


def _waits(job: Job) -> bool:
    return job.where in (Where.WAITING, Where.DEFERRED)


def order(job: Job) -> tuple[int, float, int]:
    return (job.level, job.account.served, job.seniority)


def _contends(job: Job) -> tuple[int, bool, float, int]:
    return (job.level, job.where is not Where.PARKED, job.account.served, job.seniority)


def _order_back(job: Job) -> tuple[bool, int, float, int]:
    return (job.turned_out, *(order(job) if job.turned_out else (0, 0.0, job.seniority)))


def _insert(line: deque[Job], job: Job) -> None:
    """Into its place by seniority. A line may still hold this very job from before it stood aside."""
    if job in line:
        return
    at = next((i for i, other in enumerate(line) if other.seniority > job.seniority), len(line))
    line.insert(at, job)
