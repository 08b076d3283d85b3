"""The queue against a model that is one plain list: who is next, who has entered, who is refused.

The model finds every answer by looking at everybody; the queue must give the same ones from its lines.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stretto.core.fairness import Account
from stretto.core.invariants import check_admission
from stretto.core.limits import Limits
from stretto.core.queue import AGEING_TURN, Queue
from stretto.core.request import Priority, Request, SamplingParams
from stretto.core.slot import Job, Where
from stretto.testing.strategies import text
from tests.simulation.machines.profile import DICE, PROFILE

WAITS = (Where.WAITING, Where.DEFERRED)


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        depth=st.integers(1, 2),
        max_queue=st.sampled_from((0, 2, 50)),
        wait_s=st.sampled_from((None, 5.0)),
    )
    def begin(self, slots, depth, max_queue, wait_s):
        self.limits = Limits(n_seq_max=slots, queue_depth=depth, max_queue=max_queue, max_queue_wait_s=wait_s)
        self.queue = Queue(self.limits)
        self.accounts = {name: Account(name, 1.0) for name in ("a", "b", "c")}
        self.jobs: list[Job] = []  # everybody who has not ended, by seniority
        self.since: dict[str, float] = {}  # callers that stepped back
        self.entered: dict[str, float] = {}  # the model's own word on who is in flight, since when
        self.admissions = 0
        self.aged_at = 0
        self.pushed = 0
        self.now = 0.0

    def of(self, *places: Where, level: int | None = None) -> list[Job]:
        return [j for j in self.jobs if j.where in places and level in (None, j.level)]

    def in_flight(self, level: int) -> int:
        return sum(1 for job in self.jobs if job.level == level and job.id in self.entered)

    def callers(self, level: int) -> list[Job]:
        return [j for j in self.jobs if j.level == level and j.id not in self.entered]

    # --- moves -----------------------------------------------------------------------------------

    @rule(dice=DICE)
    def push(self, dice):
        self._push(dice)

    @rule(dice=DICE)
    def burst(self, dice):
        for _ in range(6):
            self._push(dice)

    def _push(self, dice) -> None:
        level = dice.choice((0, 1, 1, 1, 2))
        place = self.in_flight(level) < self.limits.in_flight_max
        place = place or len(self.callers(level)) < self.limits.max_queue
        assert self.queue.has_place(level) == place, "a place is refused, or given twice"
        if not place:
            return
        account = self.accounts[dice.choice("abc")]
        request = Request(
            f"r{self.pushed}",
            text(3, 1),
            SamplingParams(),
            priority=Priority(level),
            tenant=account.tenant,
            streamed=dice.random() < 0.5,
        )
        job = Job(request, seniority=self.pushed, account=account, now=self.now, length_max=9)
        self.pushed += 1
        if self.in_flight(level) < self.limits.in_flight_max:
            self.entered[job.id] = self.now
        self.queue.push(job, self.now)
        self.jobs.append(job)

    def next_job(self) -> Job | None:
        """Parked first unless somebody strictly more urgent waits; then the order; each fourth the oldest.

        And after every fourth one that was parked passes who is more urgent.
        """
        waiting, parked = self.of(Where.WAITING), self.of(Where.PARKED)
        urgent = min((j.level for j in waiting), default=9)
        aged = bool(waiting) and self.admissions - self.aged_at >= AGEING_TURN
        able = [j for j in parked if aged or j.level <= urgent]
        firm = [j for j in able if not j.turned_out]
        turned = sorted(able, key=lambda j: (j.level, j.account.served, j.seniority))
        back = (firm or turned or [None])[0]
        if back is not None:
            return back
        if self.admissions % AGEING_TURN == AGEING_TURN - 1:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda j: (j.level, j.account.served, j.seniority), default=None)

    @precondition(lambda self: len(self.of(Where.RUNNING)) < self.limits.n_seq_max)
    @rule(dice=DICE)
    def admit(self, dice):
        job = self.queue.next_parked() or self.queue.next_first()
        if job is not None:
            self._admit(job)
            job.account.charge(dice.randint(1, 30))

    def _admit(self, job: Job, *, counted: bool = True) -> None:
        first = job.where is not Where.PARKED
        self.queue.admit(job, self.now, counted=counted)
        assert job.where is Where.RUNNING
        if not first:
            ageing = self.admissions % AGEING_TURN == AGEING_TURN - 1
            self.admissions += counted and job.turned_out and not ageing
            if any(j.level < job.level for j in self.of(Where.WAITING)):
                self.aged_at = self.admissions
        else:
            self.admissions += counted
            self._enter(job)
            check_admission(job)

    def _enter(self, job: Job) -> None:
        """Who overtakes as a caller takes the place of the last who had entered and still waits."""
        if job.id in self.entered:
            return
        self.entered[job.id] = self.now
        waits = [j for j in self.of(*WAITS) if j.level == job.level and j.id in self.entered]
        if self.in_flight(job.level) > self.limits.in_flight_max and waits:
            del self.entered[waits[-1].id]
            self.since[waits[-1].id] = self.now

    @precondition(lambda self: self.of(Where.WAITING))
    @rule(dice=DICE)
    def admit_by_time_out(self, dice):
        if len(self.of(Where.RUNNING)) < self.limits.n_seq_max:
            self._admit(dice.choice(self.of(Where.WAITING)), counted=False)

    @precondition(lambda self: self.of(Where.WAITING))
    @rule()
    def defer(self):
        job = self.queue.next_first()
        assert job is not None
        self.queue.defer(job)
        assert job.where is Where.DEFERRED

    @precondition(lambda self: self.of(Where.DEFERRED))
    @rule(dice=DICE)
    def resume(self, dice):
        job = dice.choice(self.of(Where.DEFERRED))
        self.queue.resume(job)
        assert job.where is Where.WAITING

    @precondition(lambda self: self.of(Where.RUNNING))
    @rule(dice=DICE)
    def park(self, dice):
        job = dice.choice(self.of(Where.RUNNING))
        job.parks += 1
        job.turned_out = dice.random() < 0.5
        if not self.of(Where.PARKED):
            self.aged_at = self.admissions
        self.queue.park(job)

    @precondition(lambda self: self.jobs)
    @rule(dice=DICE)
    def end(self, dice):
        self._end(dice.choice(self.jobs))

    @precondition(lambda self: self.of(Where.RUNNING))
    @rule(dice=DICE)
    def finish(self, dice):
        self._end(dice.choice(self.of(Where.RUNNING)))

    def _end(self, job: Job) -> None:
        self.queue.remove(job)
        job.where = Where.ENDED
        self.jobs.remove(job)
        self.queue.leave_flight(job, self.now)
        if self.entered.pop(job.id, None) is not None:
            while self.in_flight(job.level) < self.limits.in_flight_max and self.callers(job.level):
                self.entered[self.callers(job.level)[0].id] = self.now

    @rule(dice=DICE)
    def turns(self, dice):
        """Several moves in a row, whatever rules hypothesis leaves out of an example."""
        for _ in range(6):
            running, waiting = self.of(Where.RUNNING), self.of(Where.WAITING)
            moves = [self._push]
            if len(running) < self.limits.n_seq_max:
                moves += [self.admit, self.admit]
            moves += [self.finish, self.park] if running else []
            moves += [lambda _: self.defer()] if waiting else []
            moves += [self.resume] if self.of(Where.DEFERRED) else []
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
        callers = [j for level in Priority for j in self.callers(level)]
        right = [j for j in callers if self.now - self.since.get(j.id, j.arrival_s) >= wait_s]
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
        assert list(queue.waiting()) == self.of(Where.WAITING)
        assert sorted(j.seniority for j in queue.deferred) == [j.seniority for j in self.of(Where.DEFERRED)]
        assert queue.parked == self.of(Where.PARKED)
        assert (queue.next_parked() or queue.next_first()) is self.next_job(), "who is next"
        urgent = min(self.of(Where.WAITING), key=lambda j: (j.level, j.seniority), default=None)
        assert queue.next_urgent() is urgent
        readers = [j for j in self.of(Where.WAITING) if j.request.streamed and j.level < Priority.BACKGROUND]
        assert queue.readers(2) == sorted(readers, key=lambda j: (j.level, j.account.served, j.seniority))[:2]
        for level in Priority:
            assert queue.entered(level) == self.in_flight(level)
            assert queue.callers(level) == len(self.callers(level)) <= self.limits.max_queue
        for job in self.jobs:
            assert job.entered_s == self.entered.get(job.id), f"{job.id} entered at another time"

    @invariant()
    def next_time_out(self):
        if hasattr(self, "queue") and self.limits.max_queue_wait_s is not None:
            callers = [j for level in Priority for j in self.callers(level)]
            due = min((self.since.get(j.id, j.arrival_s) for j in callers), default=None)
            right = None if due is None else due + self.limits.max_queue_wait_s
            assert self.queue.next_timeout_s() == right


TestQueue = QueueMachine.TestCase
TestQueue.settings = PROFILE
