"""The engine loop with the simulated backend: real threads, real time."""

from __future__ import annotations

import queue
import resource
import threading
import time
from array import array
from dataclasses import replace

import pytest

from stretto.backends.simulated import LatencyModel, SimulatedBackend, SimulatedModel
from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits, Preemption
from stretto.core.request import Priority, Request, SamplingParams
from stretto.core.tick import End, Events
from stretto.errors import InvariantError, ShuttingDownError
from stretto.worker.loop import EngineLoop

FAST = LatencyModel(a_s=0, b_s=0, c_s=0, beta_s=0, gamma_s=0)
STREAMS = Capabilities(sequences_max=4, window=512, vocab=512)
AHEAD = Capabilities(
    sequences_max=4, window=512, vocab=512, share=Share.PAGES, pages=200, page_tokens=16, plan_ahead=1
)


class Collector:
    """Takes events on the loop's thread and lets a test wait for ends."""

    def __init__(self) -> None:
        self.tokens: dict[str, array] = {}
        self.ends: queue.SimpleQueue = queue.SimpleQueue()

    def __call__(self, events: Events) -> None:
        at = 0
        for request_id, count in zip(events.requests, events.counts, strict=True):
            self.tokens.setdefault(request_id, array("i")).extend(events.tokens[at : at + count])
            at += count
        for terminal in events.ends:
            self.ends.put(terminal)

    def wait(self, count: int, timeout_s: float = 10.0) -> dict:
        found = [self.ends.get(timeout=timeout_s) for _ in range(count)]
        return {terminal.request_id: terminal for terminal in found}


class SlowBackend(SimulatedBackend):
    """Takes real time for every pass, as a model would."""

    def __init__(self, can: Capabilities, pause_s: float) -> None:
        super().__init__(can, latency=FAST)
        self._pause_s = pause_s

    def collect(self):
        time.sleep(self._pause_s)
        return super().collect()


def request(number: int, *, tokens: int = 20, max_tokens: int = 12, **options) -> Request:
    text = array("i", [1 + (number * 7 + i) % 500 for i in range(tokens)])
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset({0}), seed=number)
    return Request(f"r{number}", text, params, **options)


def run_loop(backend, *, limits: Limits | None = None):
    collector = Collector()
    loop = EngineLoop(backend, limits or Limits(n_seq_max=4), collector)
    loop.start()
    return loop, collector


@pytest.mark.parametrize("can", [STREAMS, AHEAD], ids=["streams", "ahead"])
def test_many_requests_from_many_threads_get_their_own_text(can):
    loop, collector = run_loop(SimulatedBackend(can, latency=FAST))
    requests = [request(n) for n in range(32)]
    threads = [
        threading.Thread(target=lambda part=requests[i::4]: [loop.submit(r) for r in part]) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    ends = collector.wait(32)
    loop.close()
    model = SimulatedModel(vocab=512)
    for asked in requests:
        assert ends[asked.id].end is End.FINISHED
        assert collector.tokens[asked.id] == model.continuation(asked, count=12)


def test_an_idle_loop_burns_no_cpu():
    loop, collector = run_loop(SimulatedBackend(STREAMS, latency=FAST))
    loop.submit(request(1))
    collector.wait(1)
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    loop.close()
    burnt_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert burnt_s < 0.05


def test_a_rejection_is_delivered_as_an_end():
    loop, collector = run_loop(SimulatedBackend(STREAMS, latency=FAST))
    loop.submit(Request("empty", array("i")))
    end = collector.wait(1)["empty"]
    loop.close()
    assert (end.end, end.reason) == (End.REJECTED, "empty_prompt")


def test_a_cancelled_request_ends_within_a_tick():
    loop, collector = run_loop(SlowBackend(STREAMS, 0.02))
    loop.submit(request(1, max_tokens=400))
    time.sleep(0.2)
    started = time.monotonic()
    loop.cancel("r1")
    end = collector.wait(1)["r1"]
    waited_s = time.monotonic() - started
    loop.close()
    assert (end.end, end.reason) == (End.CANCELLED, "client")
    assert waited_s < 0.2


def test_a_deadline_fires_while_running():
    loop, collector = run_loop(SlowBackend(STREAMS, 0.01))
    loop.submit(request(1, max_tokens=400, deadline_s=time.monotonic() + 0.2))
    end = collector.wait(1)["r1"]
    loop.close()
    assert (end.end, end.reason) == (End.CANCELLED, "deadline")


def test_close_cancels_running_requests_and_rejects_later_ones():
    loop, collector = run_loop(SlowBackend(STREAMS, 0.01))
    for number in range(8):
        loop.submit(request(number, max_tokens=400, priority=Priority.DEFAULT))
    time.sleep(0.1)
    loop.close()
    ends = collector.wait(8)
    assert {end.reason for end in ends.values()} <= {"shutdown", "shutting_down"}
    loop.submit(request(99))
    assert collector.wait(1)["r99"].reason == "shutting_down"
    assert not loop.alive


def test_drain_lets_running_requests_finish():
    loop, collector = run_loop(SlowBackend(STREAMS, 0.005), limits=Limits(n_seq_max=1))
    loop.submit(request(1, max_tokens=20))
    time.sleep(0.05)
    loop.submit(request(2))
    loop.drain()
    loop.submit(request(3))
    ends = collector.wait(3)
    loop.close()
    assert ends["r1"].end is End.FINISHED
    assert ends["r2"].reason == ends["r3"].reason == "shutting_down"


def test_inspect_shows_the_slots_and_may_be_cancelled():
    loop, collector = run_loop(SlowBackend(STREAMS, 0.01))
    endless = SamplingParams(max_tokens=400, ignore_eos=True)
    for number in range(6):
        loop.submit(replace(request(number), params=endless))
    time.sleep(0.2)
    found = loop.inspect().result(10)
    assert {slot.state for slot in found.slots} <= {"prefilling", "generating"}
    assert len({slot.request_id for slot in found.slots}) == 4
    assert found.queued == {"urgent": 0, "default": 2, "background": 0}
    for _ in range(20):
        loop.inspect().cancel()
    assert loop.inspect().result(10).slots
    loop.close()
    collector.wait(6)
    assert loop.failure is None
    assert isinstance(loop.inspect().exception(10), ShuttingDownError)


def test_a_violated_invariant_answers_all_requests_and_ends_the_loop():
    class Broken(SimulatedBackend):
        def launch(self, tick):
            raise InvariantError("planted")

    loop, collector = run_loop(Broken(STREAMS, latency=FAST))
    for number in range(3):
        loop.submit(request(number))
    ends = collector.wait(3)
    assert {end.reason for end in ends.values()} <= {"invariant_broken", "shutting_down"}
    loop.close()
    assert isinstance(loop.failure, InvariantError)


@pytest.mark.parametrize("preemption", Preemption)
def test_every_victim_is_counted_by_its_reason(preemption):
    """Also one that ends with an error: operators look for these first."""
    can = Capabilities(sequences_max=1, window=1024, vocab=512)
    timeout_s = 0.3  # far more than one tick, also on a busy machine: the victim must not become the waiter
    limits = Limits(n_seq_max=1, cache="incremental", cache_slot_timeout_s=timeout_s, preemption=preemption)
    loop, collector = run_loop(SlowBackend(can, 0.001), limits=limits)
    loop.submit(replace(request(1), params=SamplingParams(max_tokens=800)))
    loop.submit(replace(request(2), params=SamplingParams(max_tokens=1), tenant="other"))
    ends = collector.wait(2)
    loop.close()
    assert loop.stats.preemptions == {"timeout": 1}
    record = ends["r1"].preempted
    if preemption is Preemption.RESUME:
        assert (ends["r1"].end, ends["r1"].preemptions, record) == (End.FINISHED, 1, None)
    else:
        assert (record.waiter_id, record.same_tenant, record.resumes) == ("r2", False, False)
        assert record.waited_s >= timeout_s
