"""A scheduler with the simulated backend, driven tick by tick for tests that count ticks or seconds."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable

from stretto.backends.base import complete
from stretto.backends.simulated import LatencyModel, SimulatedBackend
from stretto.core.capabilities import Capabilities
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Events, Idle, Tick


class Rig:
    def __init__(self, can: Capabilities, limits: Limits, latency: LatencyModel | None = None) -> None:
        self.backend = SimulatedBackend(can, latency=latency or LatencyModel())
        self.scheduler = Scheduler(limits, can)
        self.now = 0.0
        self.ticks = 0
        self.first_token_tick: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        self.preemptions = 0
        self.tokens_by_tenant: Counter[str] = Counter()
        self._tenants: dict[str, str] = {}
        self.last_pass_s = 0.0

    def submit(self, request: Request) -> bool:
        self._tenants[request.id] = request.tenant
        return self.scheduler.submit(request, self.now).accepted

    def step(self) -> Tick | None:
        planned = self.scheduler.plan(self.now)
        if isinstance(planned, Idle):
            self._take(self.scheduler.take_events())
            return None
        self.backend.launch(planned)
        outcome = complete(self.backend, planned)
        self.last_pass_s = outcome.pass_s
        self.now += outcome.pass_s
        self.ticks += 1
        self._take(self.scheduler.commit(outcome, self.now))
        return planned

    def run_until(self, done: Callable[[], bool], *, ticks_max: int = 100_000) -> None:
        for _ in range(ticks_max):
            if done():
                return
            self.step()
        raise AssertionError(f"not done after {ticks_max} ticks")

    def _take(self, events: Events) -> None:
        for request_id, count in zip(events.requests, events.counts, strict=True):
            self.first_token_tick.setdefault(request_id, self.ticks)
            self.tokens_by_tenant[self._tenants[request_id]] += count
        for terminal in events.ends:
            self.ends[terminal.request_id] = f"{terminal.end.value}: {terminal.reason}"
            self.preemptions += terminal.preemptions


def request(name: str, tokens: int, max_tokens: int, **options: object) -> Request:
    """A prompt of its own: no two names share a prefix."""
    base = sum(name.encode()) % 97
    text = array("i", [1 + (base * 31 + i * 7 + len(name)) % 500 for i in range(tokens)])
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(name, text, params, **options)  # type: ignore[arg-type]
