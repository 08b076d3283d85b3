"""A replica as a queue with slots, a prefix cache and three events a request: for a million requests.

No ticks: a request's prompt and answer get the time that the machine's latency model gives them at the load
of the moment. Tenants' fairness is the core's (`Accounts`), the prefix cache an LRU of block hashes with as
many tokens as the machine has. How far it is from the real scheduler is measured (`simulate agree`).
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque

from stretto.cluster.policy.reports import ReplicaReport
from stretto.core.backlog import Backlog
from stretto.core.blocks import BLOCK_TOKENS, DIGEST_BLOCKS_MAX, PrefixDigest
from stretto.core.fairness import AGEING_PERIOD, TOKEN_COST, Account, Accounts, TenantService
from stretto.testing.cluster.replicas import NEVER_S, Delivered, ReplicaMachine
from stretto.testing.cluster.workloads import SimulatedRequest

SERVICE_WEIGHT = 0.1
TARGET_S = 0.05  # between two tokens: how long prompts hold up decode rows
FIRST, END = 0, 1


class _EventJob:
    __slots__ = (
        "account",
        "arrival",
        "blocks",
        "cached",
        "cancelled",
        "prepaid",
        "prompt",
        "request_id",
        "since_s",
        "tokens",
        "written",
    )

    def __init__(
        self, ask: SimulatedRequest, arrival: int, account: Account, blocks: tuple[int, ...], delivered: int
    ) -> None:
        self.request_id = ask.id
        self.arrival = arrival
        self.account = account
        self.blocks = blocks
        self.prompt = ask.prompt_tokens + delivered
        self.tokens = ask.output_tokens - delivered  # still to be generated
        self.written = 0
        self.cached = 0
        self.prepaid = 0.0
        self.since_s = -1.0  # when it got its slot
        self.cancelled = False


class EventReplica:
    def __init__(self, replica_id: str, machine: ReplicaMachine) -> None:
        self.id = replica_id
        self.alive = True
        self._machine = machine
        self._accounts = Accounts({})
        self._lines: dict[str, deque[_EventJob]] = {}
        self._by_age: deque[_EventJob] = deque()
        self._jobs: dict[str, _EventJob] = {}
        self._running = 0
        self._events: list[tuple[float, int, int, _EventJob]] = []
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._blocks_max = max(1, machine.cache_tokens // BLOCK_TOKENS)
        self._prefill_free_s = 0.0
        self._prefills: list[tuple[float, float]] = []  # (end, work) of prompts that are being computed
        self._now = 0.0
        self._arrivals = self._admissions = 0
        self._service_s: float | None = None
        self._woken = False

    # --- requests --------------------------------------------------------------------------------

    def submit(self, ask: SimulatedRequest, *, delivered: int, blocks: tuple[int, ...], now: float) -> bool:
        job = _EventJob(ask, self._arrivals, self._accounts.join(ask.tenant), blocks, delivered)
        self._arrivals += 1
        self._jobs[ask.id] = job
        self._lines.setdefault(ask.tenant, deque()).append(job)
        self._by_age.append(job)
        self._now, self._woken = now, True
        return True

    def cancel(self, request_id: str, now: float) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            job.cancelled = True
            self._now, self._woken = now, True
            heapq.heappush(self._events, (now, END, job.arrival, job))

    def holds(self, request_id: str) -> bool:
        return request_id in self._jobs

    @property
    def requests(self) -> int:
        return len(self._jobs)

    # --- time ------------------------------------------------------------------------------------

    def next_s(self) -> float:
        if self._woken:
            return self._now
        return self._events[0][0] if self._events else NEVER_S

    def advance(self, now: float) -> Delivered:
        found = Delivered([], [], [])
        self._woken = False
        while self._events and self._events[0][0] <= now:
            _, kind, _, job = heapq.heappop(self._events)
            if self._jobs.get(job.request_id) is not job:
                continue  # cancelled before
            if kind == FIRST and not job.cancelled:
                self._first(job, now, found)
            else:
                self._end(job, now, found)
        while self._running < self._machine.slots and (next_ := self._next()) is not None:
            self._admit(next_, now, found)
        return found

    def _next(self) -> _EventJob | None:
        """The tenant with the smallest counter; every fourth admission goes to the oldest."""
        if self._admissions % AGEING_PERIOD == AGEING_PERIOD - 1:
            while self._by_age and not self._waits(self._by_age[0]):
                self._by_age.popleft()
            return self._by_age[0] if self._by_age else None
        best: _EventJob | None = None
        for tenant in list(self._lines):
            line = self._lines[tenant]
            while line and not self._waits(line[0]):
                line.popleft()
            if not line:
                del self._lines[tenant]
            elif best is None or (line[0].account.served, line[0].arrival) < (
                best.account.served,
                best.arrival,
            ):
                best = line[0]
        return best

    def _waits(self, job: _EventJob) -> bool:
        return job.since_s < 0.0 and self._jobs.get(job.request_id) is job

    def _admit(self, job: _EventJob, now: float, found: Delivered) -> None:
        self._admissions += 1
        self._running += 1
        job.since_s = now
        job.cached = self._lookup(job)
        self._store(job)  # prompts run one after the other: what is ahead is computed by then
        job.prepaid = self._accounts.pay_ahead(job.account, 0)
        missing = job.prompt - job.cached
        latency = self._machine.latency
        alone_s = latency.chunk_s(missing, job.cached)
        if self._running > 1:  # prompts share the machine with the rows of all others, half and half at worst
            alone_s += min(alone_s, self._decode_s() * max(1.0, alone_s / TARGET_S))
        self._prefills = [(end_s, work_s) for end_s, work_s in self._prefills if end_s > now]
        # short prompts go first: of what is ahead, only as much as this one is long
        ahead_s = sum(min(alone_s, work_s, end_s - now) for end_s, work_s in self._prefills)
        first_s = now + ahead_s + alone_s + latency.a_s
        self._prefills.append((first_s, alone_s))
        self._prefill_free_s = max(self._prefill_free_s, now) + alone_s
        heapq.heappush(self._events, (first_s, FIRST, job.arrival, job))
        found.started.append((job.request_id, job.cached))

    def _first(self, job: _EventJob, now: float, found: Delivered) -> None:
        job.account.charge(job.prompt - job.cached)
        job.written = 1
        self._pay(job, 1)
        found.tokens.append((job.request_id, 1))
        busy = max(0.0, self._prefill_free_s - now)
        rest_s = (job.tokens - 1) * self._decode_s()
        rest_s += min(busy, rest_s)  # prompts take half of the machine while there are some
        heapq.heappush(self._events, (now + rest_s, END, job.arrival, job))

    def _end(self, job: _EventJob, now: float, found: Delivered) -> None:
        if not job.cancelled and job.written:
            found.tokens.append((job.request_id, job.tokens - job.written))
            self._pay(job, job.tokens - job.written)
            self._accounts.learn(job.tokens)
        if job.since_s >= 0.0:
            self._running -= 1
            held_s = now - job.since_s
            known_s = self._service_s if self._service_s is not None else held_s
            self._service_s = known_s + SERVICE_WEIGHT * (held_s - known_s)
        job.account.served -= job.prepaid
        job.prepaid = 0.0
        self._accounts.leave(job.account)
        del self._jobs[job.request_id]
        found.ended.append(job.request_id)

    def _decode_s(self) -> float:
        latency, rows = self._machine.latency, max(1, self._running)
        return latency.a_s + rows * (latency.b_s + latency.c_s * 1024)

    def _pay(self, job: _EventJob, tokens: int) -> None:
        cost = TOKEN_COST * tokens / job.account.weight
        job.prepaid -= cost
        if job.prepaid < 0.0:
            job.account.served -= job.prepaid
            job.prepaid = 0.0

    # --- cache -----------------------------------------------------------------------------------

    def _lookup(self, job: _EventJob) -> int:
        depth = 0
        for block in job.blocks:
            if block not in self._cache:
                break
            depth += 1
        return min(depth * BLOCK_TOKENS, job.prompt - 1)

    def _store(self, job: _EventJob) -> None:
        for block in reversed(job.blocks):
            if block in self._cache:
                self._cache.move_to_end(block)
            else:
                self._cache[block] = None
        while len(self._cache) > self._blocks_max:
            self._cache.popitem(last=False)

    # --- reports ---------------------------------------------------------------------------------

    def backlog(self) -> Backlog:
        return Backlog(
            slots=self._machine.slots,
            occupied=len(self._jobs),
            prefill_s=max(0.0, self._prefill_free_s - self._now),
            service_s=self._service_s or 0.0,
        )

    def report(self, *, version: int, secret: bytes, digest: bool) -> ReplicaReport:
        made = None
        if digest:
            newest = [
                block for block, _ in zip(reversed(self._cache), range(DIGEST_BLOCKS_MAX), strict=False)
            ]
            made = PrefixDigest(version, array("Q", newest), complete=len(newest) == len(self._cache))
        latency = self._machine.latency
        return ReplicaReport(
            replica_id=self.id,
            backlog=self.backlog(),
            prefill_s_per_token=latency.beta_s + latency.gamma_s * 512,
            row_s=latency.b_s,
            cache_tokens=self._machine.cache_tokens,
            digest=made,
        )

    def service(self) -> dict[str, TenantService]:
        return self._accounts.service()

    def share(self, elsewhere: dict[str, TenantService]) -> None:
        self._accounts.share(elsewhere)

    def foreign(self, tenant: str) -> float | None:
        return self._accounts.of(tenant).foreign_seen if tenant in self._accounts.service() else None
