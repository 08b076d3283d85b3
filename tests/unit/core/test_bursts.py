"""A burst that meets as many kept conversations is planned in a time that people do not notice."""

from __future__ import annotations

import gc
import time
from array import array

from stretto.backends.base import complete
from stretto.backends.simulated import SimulatedBackend
from stretto.core.capabilities import Capabilities
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Tick

SLOTS = 64
HEAD = list(range(1, 120))  # all conversations begin alike


def burst(scheduler: Scheduler, backend: SimulatedBackend, number: int) -> float:
    """CPU seconds of the slowest plan, without collections of what other tests left behind."""
    for index in range(SLOTS):
        own = [(number * 7919 + index * 104729 + at * 31) % 400 + 1 for at in range(100)]
        request = Request(
            f"{number}-{index}", array("i", HEAD + own), SamplingParams(max_tokens=4, ignore_eos=True)
        )
        assert scheduler.submit(request, 0.0).accepted
    slowest_s = 0.0
    while scheduler.state.jobs:
        gc.disable()
        started = time.thread_time()
        planned = scheduler.plan(0.0)
        slowest_s = max(slowest_s, time.thread_time() - started)
        gc.enable()
        if isinstance(planned, Tick):
            backend.launch(planned)
            scheduler.commit(complete(backend, planned), 0.0)
    return slowest_s


def test_a_burst_on_kept_conversations_is_planned_quickly():
    """Comparing all with all once took nine seconds at twice the slots."""
    for contiguous in (False, True):
        can = Capabilities(sequences_max=SLOTS, window=2048, contiguous=contiguous, bytes_per_token=1000)
        scheduler = Scheduler(Limits(n_seq_max=SLOTS, n_batch=4096, cache_min_tokens=50), can)
        backend = SimulatedBackend(can)
        slowest = [burst(scheduler, backend, number) for number in range(3)]
        assert max(slowest) < 0.5


def test_everybody_in_a_burst_finds_the_prefix_that_one_of_them_takes_over():
    """One adopts the idle sequence and cuts it short; the others, admitted in the same plan, copy from it."""
    can = Capabilities(sequences_max=8, window=2048, contiguous=True, bytes_per_token=1000)
    scheduler = Scheduler(Limits(n_seq_max=8, n_batch=512, cache_min_tokens=50), can)
    backend = SimulatedBackend(can)
    cached = {}
    for names in (["warm"], [f"r{index}" for index in range(8)]):
        for number, name in enumerate(names):
            own = [200 + number] * 30
            params = SamplingParams(max_tokens=4, ignore_eos=True)
            assert scheduler.submit(Request(name, array("i", HEAD + own), params), 0.0).accepted
        while scheduler.state.jobs:
            planned = scheduler.plan(0.0)
            if isinstance(planned, Tick):
                backend.launch(planned)
                events = scheduler.commit(complete(backend, planned), 0.0)
                cached |= {end.request_id: end.cached_tokens for end in events.ends}
    assert cached.pop("warm") == 0
    assert min(cached.values()) >= len(HEAD)
