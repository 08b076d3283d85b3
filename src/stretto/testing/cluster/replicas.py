"""A simulated replica around the real scheduler: it plans and commits as on a machine, passes are modelled.

Tokens are all alike: what a replica writes is checked elsewhere. Its driver calls `advance` when `next_s` has
come; between, requests are submitted and cancelled as they arrive.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from stretto.backends.simulated import LatencyModel
from stretto.cluster.policy.reports import ReplicaReport
from stretto.core import backlog
from stretto.core.backlog import Backlog
from stretto.core.blocks import BLOCK_TOKENS, DIGEST_BLOCKS_MAX, block_hashes, digest_of
from stretto.core.capabilities import Capabilities, Share
from stretto.core.fairness import TenantService
from stretto.core.limits import Limits
from stretto.core.ops import OpResult
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Events, Idle, Outcome, Tick
from stretto.testing.cluster.workloads import SimulatedRequest, tokens_of

NEVER_S = float("inf")
ANY_TOKEN = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMachine:
    """What every replica has."""

    slots: int = 8
    cache_tokens: int = 65_536
    window: int = 16_384
    latency: LatencyModel = field(default_factory=LatencyModel)
    page_tokens: int = 16
    max_queue: int = 1 << 20

    def times(self, factor: int) -> ReplicaMachine:
        """One machine with so many times the slots and the memory."""
        return replace(self, slots=self.slots * factor, cache_tokens=self.cache_tokens * factor)


class Delivered(NamedTuple):
    """What one advance gave: token counts by request, then starts with their cached tokens, then ends."""

    tokens: list[tuple[str, int]]
    started: list[tuple[str, int]]
    ended: list[str]


class Replica(Protocol):
    """One replica of a simulated cluster, of either kind."""

    id: str
    alive: bool

    def submit(
        self, ask: SimulatedRequest, *, delivered: int, blocks: tuple[int, ...], now: float
    ) -> bool: ...
    def cancel(self, request_id: str, now: float) -> None: ...
    def holds(self, request_id: str) -> bool: ...
    def next_s(self) -> float: ...
    def advance(self, now: float) -> Delivered: ...
    def report(self, *, version: int, secret: bytes, digest: bool) -> ReplicaReport: ...
    def service(self) -> dict[str, TenantService]: ...
    def share(self, elsewhere: dict[str, TenantService]) -> None: ...
    def foreign(self, tenant: str) -> float | None: ...

    @property
    def requests(self) -> int: ...
    def backlog(self) -> Backlog: ...


class SchedulerReplica:
    def __init__(self, replica_id: str, machine: ReplicaMachine) -> None:
        self.id = replica_id
        self.alive = True
        self._machine = machine
        can = Capabilities(
            share=Share.PAGES,
            sequences_max=machine.slots,
            window=machine.window,
            page_tokens=machine.page_tokens,
            pages=machine.cache_tokens // machine.page_tokens,
            rows_max=1 << 20,
            outputs_max=1 << 20,
        )
        limits = Limits(
            n_seq_max=machine.slots, n_batch=4096, max_queue=machine.max_queue, cache_min_tokens=BLOCK_TOKENS
        )
        self.scheduler = Scheduler(limits, can)
        self._tick: Tick | None = None
        self._done_s = NEVER_S
        self._woken = False
        self._now = 0.0
        self.ticks = 0

    # --- requests --------------------------------------------------------------------------------

    def submit(self, ask: SimulatedRequest, *, delivered: int, blocks: tuple[int, ...], now: float) -> bool:
        request = Request(
            ask.id,
            tokens_of(ask.units),
            SamplingParams(max_tokens=ask.output_tokens, ignore_eos=True),
            tenant=ask.tenant,
            resumed=array("i", [ANY_TOKEN] * delivered),
        )
        self._now = now
        self._woken = True
        return self.scheduler.submit(request, now).accepted

    def cancel(self, request_id: str, now: float) -> None:
        self._now = now
        self._woken = True
        self.scheduler.cancel(request_id)

    def holds(self, request_id: str) -> bool:
        return request_id in self.scheduler.state.jobs

    @property
    def requests(self) -> int:
        return len(self.scheduler.state.jobs)

    # --- time ------------------------------------------------------------------------------------

    def next_s(self) -> float:
        """When it has something to do: the end of its pass, or now where it was woken."""
        if self._tick is not None:
            return self._done_s
        return self._now if self._woken else NEVER_S

    def advance(self, now: float) -> Delivered:
        """Commit the pass that ended, and plan the next one."""
        found = Delivered([], [], [])
        self._woken = False
        if self._tick is not None:
            self._take(self.scheduler.commit(self._outcome(self._tick), now), found)
            self._tick = None
        planned = self.scheduler.plan(now)
        self._take(self.scheduler.take_events(), found)
        if isinstance(planned, Idle):
            return found
        self._tick = planned
        self._done_s = now + max(1e-6, self._seconds(planned))
        self.ticks += 1
        return found

    def _outcome(self, tick: Tick) -> Outcome:
        outcome = Outcome(tick.id, pass_s=self._seconds(tick))
        outcome.op_results = tuple(OpResult(ok=True) for _ in tick.ops)
        outcome.counts = array("i", [int(outputs > 0) for outputs in tick.outputs])
        outcome.tokens = array("i", [ANY_TOKEN] * sum(outcome.counts))
        return outcome

    def _seconds(self, tick: Tick) -> float:
        count = tick.decode_spans
        rows, contexts = sum(tick.counts[:count]), sum(tick.starts[:count])
        chunks = list(zip(tick.counts[count:], tick.starts[count:], strict=True))
        return self._machine.latency.pass_s(rows, contexts, chunks)

    def _take(self, events: Events, found: Delivered) -> None:
        found.tokens.extend(zip(events.requests, events.counts, strict=True))
        found.started.extend((started.request_id, started.cached_tokens) for started in events.started)
        found.ended.extend(terminal.request_id for terminal in events.ends)

    # --- reports ---------------------------------------------------------------------------------

    def backlog(self) -> Backlog:
        return backlog.predict(self.scheduler.state)

    def report(self, *, version: int, secret: bytes, digest: bool) -> ReplicaReport:
        state, made = self.scheduler.state, None
        if digest:
            cached = state.ledger.cached(DIGEST_BLOCKS_MAX * BLOCK_TOKENS)
            hashes = [block_hashes(tokens, scope, secret=secret) for scope, tokens in cached.prefixes]
            made = digest_of(hashes, version)
            made = made._replace(complete=made.complete and cached.complete)
        return ReplicaReport(
            replica_id=self.id,
            backlog=self.backlog(),
            prefill_s_per_token=state.cost.prefill_s_per_token,
            row_s=state.cost.row_s,
            cache_tokens=self._machine.cache_tokens,
            digest=made,
        )

    def service(self) -> dict[str, TenantService]:
        return self.scheduler.state.accounts.service()

    def share(self, elsewhere: dict[str, TenantService]) -> None:
        self.scheduler.state.accounts.share(elsewhere)

    def foreign(self, tenant: str) -> float | None:
        """The others' service that this replica has added for a tenant; None where it does not know it."""
        accounts = self.scheduler.state.accounts
        return accounts.of(tenant).foreign_seen if tenant in accounts.service() else None
