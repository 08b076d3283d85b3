"""Threads follow the machine: fewer beside busy processes, all of them again when these are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from stretto.backends.llamacpp import threads
from stretto.backends.llamacpp.encoder_time import EncoderTime
from stretto.backends.llamacpp.native.cpu_pressure import Pressure, open_pressure
from stretto.backends.llamacpp.threads import PassThreads, ThreadGovernor

PASS_S = 0.02


class Machine:
    """Processors, of which others keep some busy; each of our threads gets its share of the rest."""

    def __init__(self, cores: int) -> None:
        self.cores, self.others, self.now_s, self.asked_s = cores, 0.0, 0.0, 0.0
        self.threads = cores

    def since(self, *, computing_s: float) -> Pressure:
        wall_s, self.asked_s = self.now_s - self.asked_s, self.now_s
        crowded = max(0.0, self.threads + self.others - self.cores)
        waited_s = computing_s * min(1.0, crowded)
        return Pressure(wall_s=wall_s, waited_s=waited_s, free_cores=self.cores - self.others)

    def close(self) -> None: ...


class SharedMachine(Machine):
    """Busy processes and our threads get equal shares of the processors."""

    def since(self, *, computing_s: float) -> Pressure:
        wall_s, self.asked_s = self.now_s - self.asked_s, self.now_s
        share = min(1.0, self.cores / (self.threads + self.others))
        waited_s = computing_s * self.threads * (1.0 - share)
        idle = max(0.0, self.cores - self.threads - self.others)
        return Pressure(wall_s=wall_s, waited_s=waited_s, free_cores=self.threads * share + idle)


class Serving:
    def __init__(self, cores: int, machine: type[Machine] = Machine) -> None:
        self.machine = machine(cores)
        self.governor = ThreadGovernor(cores, self.machine, clock=lambda: self.machine.now_s)

    def run(self, seconds: float) -> list[int]:
        """Passes for so long; the thread counts that were used, without repetitions."""
        counts = [self.governor.count]
        end_s = self.machine.now_s + seconds
        while self.machine.now_s < end_s:
            self.machine.now_s += PASS_S
            if self.governor.after_pass(PASS_S):
                self.machine.threads = self.governor.count
                counts.append(self.governor.count)
        return counts


def test_a_free_machine_keeps_all_threads() -> None:
    assert Serving(4).run(10) == [4]


def test_a_busy_process_takes_one_thread_at_once_and_gives_it_back() -> None:
    serving = Serving(2)
    serving.machine.others = 1.0
    assert serving.run(0.1) == [2, 1]
    assert serving.run(10) == [1]
    serving.machine.others = 0.0
    assert serving.run(1.0) == [1, 2]


def test_clients_and_server_on_the_same_cores_take_no_thread() -> None:
    serving = Serving(2)
    serving.machine.others = 0.35
    assert serving.run(10) == [2]
    serving.machine.others = 1.0
    assert serving.run(0.5) == [2, 1]
    serving.machine.others = 0.35
    assert serving.run(2) == [1, 2]


def test_a_burst_of_requests_takes_no_thread_while_processors_are_free_enough() -> None:
    """Eight requests at once: threads waited for half of 100 ms, the others computed for 30 ms of it."""

    class Bursts(Machine):
        def since(self, *, computing_s: float) -> Pressure:
            return Pressure(wall_s=computing_s, waited_s=0.6 * computing_s, free_cores=1.66)

    assert Serving(2, Bursts).run(5) == [2]


def test_several_busy_processes_take_as_many_threads_in_one_step() -> None:
    serving = Serving(8)
    serving.machine.others = 5.0
    assert serving.run(0.2) == [8, 3]
    serving.machine.others = 2.0
    assert serving.run(2.0)[-1] == 6


@pytest.mark.parametrize("others", [1.0, 2.0])
def test_one_thread_is_left_where_it_seldom_waits(others: float) -> None:
    serving = Serving(2, SharedMachine)
    serving.machine.others = others
    assert serving.run(5) == [2, 1]
    serving.machine.others = 0.0
    assert serving.run(5) == [1, 2]


def test_in_a_crowd_two_threads_stay_for_they_get_two_shares() -> None:
    serving = Serving(2, SharedMachine)
    serving.machine.others = 4.0
    assert serving.run(5) == [2]
    serving.machine.others = 1.0
    assert serving.run(5) == [2, 1]
    serving.machine.others = 4.0
    assert serving.run(5) == [1, 2]
    assert serving.governor.changes == 2, "no oscillation"


def test_a_crowd_leaves_two_of_many_threads() -> None:
    serving = Serving(8, SharedMachine)
    serving.machine.others = 64.0
    assert serving.run(5)[-1] == 2


def test_short_waits_change_nothing() -> None:
    serving = Serving(2)
    serving.machine.others = 0.2
    assert serving.run(5) == [2]


def test_a_return_that_does_not_last_makes_the_next_one_wait_longer() -> None:
    """A process that works in bursts of half a second: few changes, and none is far apart for ever."""
    serving = Serving(2)
    for _ in range(60):
        serving.machine.others = 1.0
        serving.run(0.5)
        serving.machine.others = 0.0
        serving.run(0.5)
    assert serving.governor.changes < 40
    serving.machine.others = 0.0
    assert serving.run(threads.RETURN_AFTER_MAX_S + 1)[-1] == 2


def test_no_governor_where_there_is_nothing_to_decide() -> None:
    assert threads.open_governor(1) is None


# --- the system's own figures ------------------------------------------------------------------------


@contextmanager
def busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def spin(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


@pytest.mark.skipif(open_pressure() is None, reason="this system does not report waiting times")
def test_the_system_reports_waits_beside_busy_processes() -> None:
    """This thread beside twice as many busy processes as there are processors: it waits most of the time."""
    reader = open_pressure()
    assert reader is not None
    cores = len(reader._cpus)
    with busy(2 * cores):
        time.sleep(0.3)
        reader.since(computing_s=0.3)
        started = time.perf_counter()
        spin(0.6)
        took_s = time.perf_counter() - started
        seen = reader.since(computing_s=took_s)
    reader.close()
    assert seen.waited_s > 0.25 * took_s
    assert seen.free_cores < cores - 0.25
    assert seen.wall_s == pytest.approx(took_s, rel=0.2)


# --- decode passes and prompts -----------------------------------------------------------------------


class SetThreads:
    """A context that only counts."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def set_threads(self, count: int, count_batch: int) -> None:
        assert count == count_batch, "llama.cpp takes the second number for passes of several rows"
        self.counts.append(count)


def test_decode_and_prefill_have_their_own_numbers() -> None:
    context, made = SetThreads(), PassThreads(decode=2, prefill=4, governor=None)
    for decode in (True, True, False, False, True):
        made.before_pass(context, decode=decode)
    assert context.counts == [2, 4, 2], "set when the kind of pass changes, not before every pass"
    made.forget()
    made.before_pass(context, decode=True)
    assert context.counts[-1] == 2


def test_fewer_threads_beside_other_processes_hold_for_both() -> None:
    serving, context = Serving(4), SetThreads()
    made = PassThreads(decode=2, prefill=4, governor=serving.governor)
    assert not made.reduced
    serving.machine.others = 3.0
    serving.run(0.5)
    for decode in (True, False):
        made.before_pass(context, decode=decode)
    assert made.reduced
    assert (context.counts, made.count) == ([1], 1)


def test_all_threads_come_back_with_the_end_of_an_encoder() -> None:
    """Other processes are watched for a while before; of our own encoder we know."""
    encoder = EncoderTime()
    encoder.is_encoding = True
    serving, context = Serving(2), SetThreads()
    made = PassThreads(decode=2, prefill=2, governor=serving.governor, encoder=encoder)
    serving.machine.others = 1.0
    serving.run(0.2)
    made.before_pass(context, decode=True)
    assert (context.counts, made.reduced) == ([1], True)
    serving.machine.others, encoder.is_encoding = 0.0, False
    made.before_pass(context, decode=False)
    assert (context.counts, made.reduced) == ([1, 2], False)
    serving.machine.threads = 2
    assert serving.run(1.0) == [2]
    serving.machine.others = 1.0
    assert serving.run(0.2) == [2, 1], "others are noticed as before"
    made.before_pass(context, decode=False)
    assert made.reduced, "only the end of an encoder brings them back"


def test_an_encoder_that_gets_the_time_that_ticks_leave_takes_no_threads_from_them() -> None:
    """What prepared its picture did, shortly before. Threads given up long ago were so because of others."""
    encoder = EncoderTime()
    serving, context = Serving(2), SetThreads()
    made = PassThreads(decode=2, prefill=2, governor=serving.governor, encoder=encoder)
    serving.machine.others = 1.0
    serving.run(0.2)
    made.before_pass(context, decode=True)
    assert made.reduced
    assert not encoder.is_crowded()
    with ThreadPoolExecutor(1) as pool, pool.submit(_long_work, encoder).result():
        made.before_pass(context, decode=True)
        assert not made.reduced
        for _ in range(20):
            made.after_pass(0.05)
        assert not made.reduced
    serving.machine.threads = 2
    serving.run(0.8)
    assert made.reduced
    assert encoder.is_crowded()


def _long_work(encoder: EncoderTime) -> ExitStack:
    """Begun on a thread that ends, as encoders begin it."""
    stack = ExitStack()
    stack.enter_context(encoder.taken(long=True))
    return stack


# --- beside an encoder: one processor for each thread ------------------------------------------------


@pytest.fixture
def computing() -> Iterator[tuple[int, ...]]:
    """Threads of this process, one for each processor that it may use."""
    over = threading.Event()
    made = [threading.Thread(target=over.wait, daemon=True) for _ in os.sched_getaffinity(0)]
    for thread in made:
        thread.start()
    yield tuple(thread.native_id or 0 for thread in made)
    over.set()


def beside_an_encoder(computing: tuple[int, ...]) -> tuple[EncoderTime, Serving, PassThreads]:
    """Passes with a thread for each processor, and the encoder that may bind them."""
    encoder, serving = EncoderTime(), Serving(len(computing))
    made = PassThreads(
        decode=len(computing), prefill=len(computing), governor=serving.governor, encoder=encoder
    )
    serving.governor.busy = computing
    return encoder, serving, made


def allowed(threads: tuple[int, ...]) -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in threads]


def test_threads_of_passes_keep_a_processor_each_while_ticks_leave_time(
    computing: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, serving, made = beside_an_encoder(computing)
    everywhere, count = os.sched_getaffinity(0), len(computing)
    with encoder.left():
        assert allowed(computing) == [{processor} for processor in sorted(everywhere)]
        with encoder.left():
            pass
        assert allowed(computing) != [everywhere] * count or count == 1, "the first one goes on"
    context = SetThreads()
    made.before_pass(context, decode=True)
    assert allowed(computing) != [everywhere] * count or count == 1, "the rows of its picture come now"
    monkeypatch.setattr(threads, "HELD_S", 0.0)
    with encoder.left():
        made.before_pass(context, decode=True)
        assert allowed(computing) == [{processor} for processor in sorted(everywhere)]
    made.before_pass(context, decode=True)
    assert allowed(computing) == [everywhere] * count
    serving.governor.busy = computing[:-1]
    with encoder.left():
        assert allowed(computing) == [everywhere] * count, "it is not known which threads compute"
    serving.governor.busy = (*computing[:-1], 2**22 - 1)
    with encoder.left():
        pass
    made.before_pass(context, decode=True)
    assert allowed(computing[:-1]) == [everywhere] * (count - 1), "one that ended is no error"
    made.close()


def test_a_rest_frees_bound_threads_and_forgets_them(computing: tuple[int, ...]) -> None:
    """The next team inherits the processors of the thread that starts it, and other threads compute then."""
    encoder, _, made = beside_an_encoder(computing)
    everywhere, count = os.sched_getaffinity(0), len(computing)
    with encoder.left():
        made.rest()
        assert allowed(computing) == [everywhere] * count
    with encoder.left():
        assert allowed(computing) == [everywhere] * count
    made.close()


def test_ticks_leave_time_until_the_last_one_is_done() -> None:
    encoder = EncoderTime()
    begun: list[str] = []
    encoder.begins, encoder.ends = lambda: begun.append("begins"), lambda: begun.append("ends")
    with encoder.left():
        with encoder.left():
            assert encoder.is_left_time
        assert encoder.is_left_time
        started = time.perf_counter()
        encoder.leave(0.2)
        assert time.perf_counter() - started >= 0.15 * 0.2
    assert not encoder.is_left_time
    encoder.leave(60.0)
    assert begun == ["begins", "ends"]


def test_no_time_is_left_where_other_processes_take_it() -> None:
    encoder = EncoderTime()
    encoder.is_crowded = lambda: True
    with encoder.left():
        assert not encoder.is_left_time
