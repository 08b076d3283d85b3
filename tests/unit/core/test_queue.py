"""The queue by example; test_queue among the machines compares it with a model."""

from __future__ import annotations

from stretto.core.fairness import AGEING_PERIOD, Account
from stretto.core.limits import Limits
from stretto.core.queue import Queue
from stretto.core.request import Priority
from stretto.core.slot import Job, Status
from tests.unit.core.rig import ask

ACCOUNTS = {name: Account(name, 1.0) for name in ("", "a", "b")}


class Line:
    def __init__(self, **limits) -> None:
        self.queue = Queue(Limits(**limits))
        self.arrivals = 0

    def push(self, *, priority=Priority.DEFAULT, account=None, now=0.0) -> Job:
        request = ask(f"r{self.arrivals}", 3, priority=priority)
        account = account or Account("", 1.0)
        job = Job(request, arrival=self.arrivals, account=account, now=now, length_max=9)
        self.arrivals += 1
        self.queue.push(job, now)
        return job

    def admit(self) -> Job | None:
        job = self.queue.next_preempted() or self.queue.next_first()
        if job is not None:
            self.queue.admit(job, 0.0)
        return job


def test_priority_then_share_then_age():
    line = Line(n_seq_max=8)
    rich, poor = Account("rich", 1.0), Account("poor", 1.0)
    rich.charge(100)
    older = line.push(account=rich)
    newer = line.push(account=poor)
    urgent = line.push(priority=Priority.URGENT, account=rich)
    assert [line.admit() for _ in range(3)] == [urgent, newer, older]


def test_every_fourth_turn_goes_to_the_oldest():
    line = Line(n_seq_max=64, queue_depth=4)
    old = line.push(priority=Priority.BACKGROUND)
    for _ in range(10):
        line.push(priority=Priority.URGENT)
    admitted = [line.admit() for _ in range(AGEING_PERIOD)]
    assert admitted[-1] is old
    assert old not in admitted[:-1]


def test_a_parked_request_goes_first_unless_a_more_urgent_one_waits():
    line = Line(n_seq_max=8)
    preempted = line.push()
    assert line.admit() is preempted
    line.queue.add_preempted(preempted)
    line.push()
    assert line.queue.next_preempted() is preempted
    urgent = line.push(priority=Priority.URGENT)
    assert line.queue.next_preempted() is None
    assert line.admit() is urgent
    assert line.admit() is preempted


def test_a_deferred_request_stands_aside_and_comes_back_to_its_place():
    line = Line(n_seq_max=8)
    first, second, third = line.push(), line.push(), line.push()
    line.queue.defer(first)
    assert line.queue.next_first() is second
    line.queue.resume(first)
    assert list(line.queue.waiting()) == [first, second, third]
    assert line.queue.next_first() is first


def test_in_flight_then_callers_then_full():
    line = Line(n_seq_max=4, queue_depth=2, max_queue=3)
    jobs = [line.push(now=float(at)) for at in range(11)]
    assert [job.entered_s for job in jobs[:9]] == [*map(float, range(8)), None]
    assert (line.queue.entered(1), line.queue.callers(1)) == (8, 3)
    assert not line.queue.has_place(Priority.DEFAULT)
    assert line.queue.has_place(Priority.URGENT)


def test_the_oldest_caller_enters_when_somebody_leaves():
    line = Line(n_seq_max=1, queue_depth=1, max_queue=3)
    first, second, third = line.push(), line.push(), line.push()
    line.queue.remove(first)
    first.status = Status.ENDED
    line.queue.leave_flight(first, 7.0)
    assert (second.entered_s, third.entered_s) == (7.0, None)


def test_callers_that_waited_too_long():
    line = Line(n_seq_max=1, queue_depth=1, max_queue=9, max_queue_wait_s=5.0)
    line.push(now=0.0)
    early, late = line.push(now=1.0), line.push(now=4.0)
    assert line.queue.next_timeout_s() == 6.0
    assert line.queue.late_callers(5.9) == []
    assert line.queue.late_callers(6.0) == [early]
    assert line.queue.late_callers(9.0) == [early, late]


def test_a_caller_is_late_at_the_very_time_that_is_waited_for():
    since_s = 1000.2445457515408  # 0.3 s later, less this, is less than 0.3: floats are rounded
    assert since_s + 0.3 - since_s < 0.3
    line = Line(n_seq_max=1, queue_depth=1, max_queue=9, max_queue_wait_s=0.3)
    line.push(now=0.0)
    caller = line.push(now=since_s)
    due_s = line.queue.next_timeout_s()
    assert due_s is not None
    assert line.queue.late_callers(due_s) == [caller]


def test_the_lines_do_not_grow_with_those_who_left():
    line = Line(n_seq_max=1, queue_depth=1, max_queue=4000)
    stays = line.push()
    for _ in range(3000):
        job = line.push()
        line.queue.remove(job)
        job.status = Status.ENDED
        line.queue.leave_flight(job, 0.0)
    assert list(line.queue.waiting()) == [stays]
    assert len(line.queue._by_age) < 200


def test_the_ageing_turn_of_preempted_requests_goes_to_the_oldest_of_them():
    """Not to one of a lower class that only a more urgent request keeps waiting."""
    line = Line(n_seq_max=8)
    oldest, background = line.push(), line.push(priority=Priority.BACKGROUND)
    for job in (oldest, background):
        line.queue.admit(job, 0.0)
        line.queue.add_preempted(job)
    for _ in range(AGEING_PERIOD):
        line.queue.admit(line.push(priority=Priority.URGENT), 0.0)
    line.push()
    assert line.queue.next_preempted() is oldest
