"""The queue against a model that is one plain list: who is next, who has entered, who is refused.

The model finds every answer by looking at everybody; the queue must give the same ones from its lines.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stretto.core.fairness import AGEING_PERIOD, Account
from stretto.core.limits import Limits
from stretto.core.request import Priority, Request, SamplingParams
from stretto.core.slot import Job, Status
from stretto.testing.ageing import RecordingQueue
from stretto.testing.strategies import text
from tests.simulation.machines.profile import DICE, PROFILE

WAITS = (Status.WAITING, Status.DEFERRED)


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        depth=st.integers(1, 2),
        max_queue=st.sampled_from((0, 2, 50)),
        wait_s=st.sampled_from((None, 5.0)),
    )
    def begin(self, slots, depth, max_queue, wait_s):
        self.limits = Limits(n_seq_max=slots, queue_depth=depth, max_queue=max_queue, max_queue_wait_s=wait_s)
        self.queue = RecordingQueue(self.limits)
        self.accounts = {name: Account(name, 1.0) for name in ("a", "b", "c")}
        self.jobs: list[Job] = []  # everybody who has not ended, by arrival
        self.since: dict[str, float] = {}  # callers that stepped back
        self.entered: dict[str, float] = {}  # the model's own word on who is in flight, since when
        self.admissions = 0
        self.aged_at = 0
        self.pushed = 0
        self.now = 0.0

    def of(self, *places: Status, priority: int | None = None) -> list[Job]:
        return [j for j in self.jobs if j.status in places and priority in (None, j.priority)]

    def in_flight(self, priority: int) -> int:
        return sum(1 for job in self.jobs if job.priority == priority and job.id in self.entered)

    def callers(self, priority: int) -> list[Job]:
        return [j for j in self.jobs if j.priority == priority and j.id not in self.entered]

    # --- moves -----------------------------------------------------------------------------------

    @rule(dice=DICE)
    def push(self, dice):
        self._push(dice)

    @rule(dice=DICE)
    def burst(self, dice):
        for _ in range(6):
            self._push(dice)

    def _push(self, dice) -> None:
        priority = dice.choice((0, 1, 1, 1, 2))
        place = self.in_flight(priority) < self.limits.in_flight_max
        place = place or len(self.callers(priority)) < self.limits.max_queue
        assert self.queue.has_place(priority) == place, "a place is refused, or given twice"
        if not place:
            return
        account = self.accounts[dice.choice("abc")]
        request = Request(
            f"r{self.pushed}",
            text(3, 1),
            SamplingParams(),
            priority=Priority(priority),
            tenant=account.tenant,
            streamed=dice.random() < 0.5,
        )
        job = Job(request, arrival=self.pushed, account=account, now=self.now, length_max=9)
        self.pushed += 1
        if self.in_flight(priority) < self.limits.in_flight_max:
            self.entered[job.id] = self.now
        self.queue.push(job, self.now)
        self.jobs.append(job)

    def next_job(self) -> Job | None:
        """Parked first unless somebody strictly more urgent waits; then the order; each fourth the oldest.

        And after every fourth one that was preempted passes who is more urgent.
        """
        waiting, preempted = self.of(Status.WAITING), self.of(Status.PREEMPTED)
        urgent = min((j.priority for j in waiting), default=9)
        aged = bool(waiting) and self.admissions - self.aged_at >= AGEING_PERIOD
        able = [j for j in preempted if aged or j.priority <= urgent]
        firm = [j for j in able if not j.time_sliced]
        turned = sorted(able, key=lambda j: (j.priority, j.account.served, j.arrival))
        back = (firm or turned or [None])[0]
        if back is not None:
            return back
        if self.admissions % AGEING_PERIOD == AGEING_PERIOD - 1:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda j: (j.priority, j.account.served, j.arrival), default=None)

    @precondition(lambda self: len(self.of(Status.RUNNING)) < self.limits.n_seq_max)
    @rule(dice=DICE)
    def admit(self, dice):
        job = self.queue.next_preempted() or self.queue.next_first()
        if job is not None:
            self._admit(job)
            job.account.charge(dice.randint(1, 30))

    def _admit(self, job: Job, *, counted: bool = True) -> None:
        first = job.status is not Status.PREEMPTED
        self.queue.admit(job, self.now, counted=counted)
        assert job.status is Status.RUNNING
        if not first:
            ageing = self.admissions % AGEING_PERIOD == AGEING_PERIOD - 1
            self.admissions += counted and job.time_sliced and not ageing
            if any(j.priority < job.priority for j in self.of(Status.WAITING)):
                self.aged_at = self.admissions
        else:
            self.admissions += counted
            self._enter(job)
            self.queue.check(job)

    def _enter(self, job: Job) -> None:
        """Who overtakes as a caller takes the place of the last who had entered and still waits."""
        if job.id in self.entered:
            return
        self.entered[job.id] = self.now
        waits = [j for j in self.of(*WAITS) if j.priority == job.priority and j.id in self.entered]
        if self.in_flight(job.priority) > self.limits.in_flight_max and waits:
            del self.entered[waits[-1].id]
            self.since[waits[-1].id] = self.now

    @precondition(lambda self: self.of(Status.WAITING))
    @rule(dice=DICE)
    def admit_by_time_out(self, dice):
        if len(self.of(Status.RUNNING)) < self.limits.n_seq_max:
            self._admit(dice.choice(self.of(Status.WAITING)), counted=False)

    @precondition(lambda self: self.of(Status.WAITING))
    @rule()
    def defer(self):
        job = self.queue.next_first()
        assert job is not None
        self.queue.defer(job)
        assert job.status is Status.DEFERRED

    @precondition(lambda self: self.of(Status.DEFERRED))
    @rule(dice=DICE)
    def resume(self, dice):
        job = dice.choice(self.of(Status.DEFERRED))
        self.queue.resume(job)
        assert job.status is Status.WAITING

    @precondition(lambda self: self.of(Status.RUNNING))
    @rule(dice=DICE)
    def preempt(self, dice):
        job = dice.choice(self.of(Status.RUNNING))
        job.preemptions += 1
        job.time_sliced = dice.random() < 0.5
        if not self.of(Status.PREEMPTED):
            self.aged_at = self.admissions
        self.queue.add_preempted(job)

    @precondition(lambda self: self.jobs)
    @rule(dice=DICE)
    def end(self, dice):
        self._end(dice.choice(self.jobs))

    @precondition(lambda self: self.of(Status.RUNNING))
    @rule(dice=DICE)
    def finish(self, dice):
        self._end(dice.choice(self.of(Status.RUNNING)))

    def _end(self, job: Job) -> None:
        self.queue.remove(job)
        job.status = Status.ENDED
        self.jobs.remove(job)
        self.queue.leave_flight(job, self.now)
        if self.entered.pop(job.id, None) is not None:
            while self.in_flight(job.priority) < self.limits.in_flight_max and self.callers(job.priority):
                self.entered[self.callers(job.priority)[0].id] = self.now

    @rule(dice=DICE)
    def several_moves(self, dice):
        """Several moves in a row, whatever rules hypothesis leaves out of an example."""
        for _ in range(6):
            running, waiting = self.of(Status.RUNNING), self.of(Status.WAITING)
            moves = [self._push]
            if len(running) < self.limits.n_seq_max:
                moves += [self.admit, self.admit]
            moves += [self.finish, self.preempt] if running else []
            moves += [lambda _: self.defer()] if waiting else []
            moves += [self.resume] if self.of(Status.DEFERRED) else []
            dice.choice(moves)(dice)
            self.same_as_the_model()

    @rule(seconds=st.sampled_from((0.5, 3.0)))
    def time_passes(self, seconds):
        self.now += seconds
        wait_s = self.limits.max_queue_wait_s
        late = self.queue.late_callers(self.now)
        if wait_s is None:
            assert late == []
            return
        callers = [j for priority in Priority for j in self.callers(priority)]
        right = [j for j in callers if self.now >= self.since.get(j.id, j.arrival_s) + wait_s]
        assert sorted(j.id for j in late) == sorted(j.id for j in right), "who has waited too long to enter"
        for job in late:
            self._end(job)

    # --- the promises ----------------------------------------------------------------------------

    @invariant()
    def same_as_the_model(self):
        if not hasattr(self, "queue"):
            return
        queue = self.queue
        assert queue.size == len(self.of(*WAITS))
        assert list(queue.waiting()) == self.of(Status.WAITING)
        assert sorted(j.arrival for j in queue.deferred) == [j.arrival for j in self.of(Status.DEFERRED)]
        assert queue.preempted == self.of(Status.PREEMPTED)
        assert (queue.next_preempted() or queue.next_first()) is self.next_job(), "who is next"
        urgent = min(self.of(Status.WAITING), key=lambda j: (j.priority, j.arrival), default=None)
        assert queue.next_urgent() is urgent
        readers = [
            j for j in self.of(Status.WAITING) if j.request.streamed and j.priority < Priority.BACKGROUND
        ]
        assert (
            queue.streaming(2) == sorted(readers, key=lambda j: (j.priority, j.account.served, j.arrival))[:2]
        )
        for priority in Priority:
            assert queue.entered(priority) == self.in_flight(priority)
            assert queue.callers(priority) == len(self.callers(priority)) <= self.limits.max_queue
        for job in self.jobs:
            assert job.entered_s == self.entered.get(job.id), f"{job.id} entered at another time"

    @invariant()
    def next_time_out(self):
        if hasattr(self, "queue") and self.limits.max_queue_wait_s is not None:
            callers = [j for priority in Priority for j in self.callers(priority)]
            due = min((self.since.get(j.id, j.arrival_s) for j in callers), default=None)
            right = None if due is None else due + self.limits.max_queue_wait_s
            assert self.queue.next_timeout_s() == right


TestQueue = QueueMachine.TestCase
TestQueue.settings = PROFILE
