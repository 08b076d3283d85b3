"""Choosing a replica: the one with the smallest predicted time to the first token.

    score = tenant's wait for a slot + prompts ahead + own prompt tokens that are not cached there
            + slow-down by the requests that run there

A replica that holds a prefix keeps getting its requests until its queue costs more than computing the prefix
elsewhere: the prefix is then copied, so imbalance is bounded by the price of a prefill. Among equal scores
the emptiest replica is chosen, then the one with fewest blocks, then one on the same node.

A prompt that begins like none before has a home, the same for all gates (rendezvous hashing of its first
block): gates that meet a prefix at the same time do not copy it.

Reports of replicas are old by the time they are used. Until the next one a router adds what it has sent
since, times the number of gates: the others see the same reports and decide alike. Several routers share
nothing else. Pure: `now` is an argument; not thread-safe, one thread (or event loop) owns a router.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stretto.cluster.policy.blocks import BLOCK_TOKENS
from stretto.cluster.policy.prefixes import BLOCKS_MAX, PrefixMap
from stretto.cluster.policy.reports import ReplicaReport
from stretto.core.backlog import Backlog, slot_wait_s

NO_LIMIT = 1 << 60
HOME_SHARE = 0.5  # of a prompt: how much of it other gates are expected to have sent to its home
UNKNOWN = Backlog(slots=1, occupied=0, prefill_s=0.0, service_s=0.0)  # of a replica that has not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    """`gates`: routers that send to the same replicas. `lag_s`: how old a report may be when it arrives.

    Scores that differ by at most `tie_s` are equal. `in_flight_max` bounds requests that are remembered until
    they end.
    """

    gates: int = 1
    lag_s: float = 0.1
    tie_s: float = 0.002
    blocks_max: int = BLOCKS_MAX  # remembered for each replica
    block_tokens: int = BLOCK_TOKENS
    in_flight_max: int = 65_536


class RouteHint(NamedTuple):
    """What a router needs to know of a request: no text, no tokens.

    `tenant`: requests wait behind those of their tenant, and behind others only as far as shares are equal.
    """

    blocks: Sequence[int]
    prompt_tokens: int
    output_tokens: int = 64  # expected
    tenant: str = ""


class Score(NamedTuple):
    """One replica's prediction for one request."""

    replica_id: str
    seconds: float
    cached_tokens: int


class _Replica:
    """A router's view of one replica: the last report, and what happened since."""

    __slots__ = (
        "changed",
        "id",
        "in_flight",
        "kv_free",
        "local",
        "occupied",
        "prefill_until_s",
        "report",
        "row_s",
        "sends",
        "tenants",
        "token_s",
        "wait_s",
    )

    def __init__(self, replica_id: str, *, local: bool) -> None:
        self.id = replica_id
        self.local = local
        self.report = ReplicaReport(replica_id=replica_id, backlog=UNKNOWN)
        self.prefill_until_s = 0.0  # when prompts ahead of a newcomer are computed
        self.in_flight = 0  # own requests that have not ended
        self.changed = 0.0  # requests sent less those ended since the report
        self.sends: list[tuple[float, float]] = []  # (when, its prefill's seconds) since the report
        self.tenants: dict[str, int] = {}  # own requests that have not ended, by tenant
        self.refresh()

    def refresh(self) -> None:
        """What a score needs, worked out when something changed and not for every request."""
        report, backlog = self.report, self.report.backlog
        # own requests are there for certain; a report adds those of others
        self.occupied = max(float(self.in_flight), backlog.occupied + self.changed)
        self.wait_s = slot_wait_s(backlog.slots, self.occupied, backlog.service_s)
        self.row_s = min(self.occupied, backlog.slots) * report.row_s
        self.token_s = report.prefill_s_per_token
        self.kv_free = report.kv_free_tokens if report.kv_free_tokens is not None else NO_LIMIT

    def count(self, tenant: str, change: int) -> None:
        left = self.tenants.get(tenant, 0) + change
        if left > 0:
            self.tenants[tenant] = left
        else:
            self.tenants.pop(tenant, None)
        self.in_flight += change
        self.refresh()

    def wait_of(self, tenant: str, gates: int) -> float:
        """Seconds until a request of this tenant has a slot, where tenants get equal shares of them."""
        if not tenant or self.wait_s <= 0.0 or not self.tenants:
            return self.wait_s  # a request of no known tenant waits behind all
        slots, service_s = self.report.backlog.slots, self.report.backlog.service_s
        sharing = len(self.tenants) + (tenant not in self.tenants)
        behind = self.tenants.get(tenant, 0) * gates - slots / sharing + 1
        return min(self.wait_s, max(1.0, behind * sharing) * service_s / slots)

    def seconds(self, missing: int, hint: RouteHint, now: float, gates: int) -> float:
        """Predicted seconds until the first token of a request that lacks so many tokens here."""
        wait_s = self.wait_of(hint.tenant, gates) if self.wait_s else 0.0
        seconds = wait_s + missing * self.token_s + self.row_s * hint.output_tokens
        if self.prefill_until_s > now:
            seconds += self.prefill_until_s - now
        if missing > self.kv_free:
            seconds += self.report.backlog.service_s  # a running request has to end first
        return seconds


_Scored = tuple[float, int, _Replica]  # seconds, cached tokens


class Router:
    def __init__(self, policy: RoutingPolicy | None = None, *, node: str = "") -> None:
        self.policy = policy or RoutingPolicy()
        self._node = node
        self._replicas: dict[str, _Replica] = {}
        self._prefixes = PrefixMap(self.policy.blocks_max)
        self._sent: dict[str, tuple[str, str]] = {}  # request -> replica and tenant, oldest first
        self._turn = 0

    # --- replicas --------------------------------------------------------------------------------

    def set_replicas(self, replicas: Iterable[tuple[str, str]]) -> None:
        """All replicas that exist now, with their nodes. What is known of those that stay is kept."""
        wanted = dict(replicas)
        for replica_id in [known for known in self._replicas if known not in wanted]:
            self.remove(replica_id)
        for replica_id, node in wanted.items():
            if replica_id not in self._replicas:
                self._replicas[replica_id] = _Replica(
                    replica_id, local=bool(self._node) and node == self._node
                )
                self._prefixes.add(replica_id)

    def remove(self, replica_id: str) -> None:
        """The replica is gone, and its cache with it."""
        if self._replicas.pop(replica_id, None) is not None:
            self._prefixes.remove(replica_id)

    def report(self, report: ReplicaReport, now: float) -> None:
        """A replica's state, as new as `now - lag_s`. Reports of unknown replicas are ignored."""
        replica = self._replicas.get(report.replica_id)
        if replica is None:
            return
        known, replica.report = replica.report.digest, report
        recent_s = now - self.policy.lag_s
        replica.sends = [(at_s, cost_s) for at_s, cost_s in replica.sends if at_s > recent_s]
        replica.changed = float(len(replica.sends) * self.policy.gates)
        ahead_s = report.backlog.prefill_s + sum(cost_s for _, cost_s in replica.sends)
        replica.prefill_until_s = now + ahead_s
        replica.refresh()
        if report.cache_tokens:
            self._prefixes.limit(report.replica_id, report.cache_tokens // self.policy.block_tokens)
        digest = report.digest
        if digest is not None and (known is None or digest.version != known.version):
            self._prefixes.correct(report.replica_id, digest, recent_s)

    # --- requests --------------------------------------------------------------------------------

    def rank(self, hint: RouteHint, now: float, among: Iterable[str] | None = None) -> list[Score]:
        """Replicas that take requests, best first. `among`: only these."""
        scores = self._scores(hint, now, self._able(among))
        if not scores:
            return []
        best = self._best(scores)
        rest = sorted((item for item in scores if item is not best), key=lambda item: item[0])
        return [Score(replica.id, seconds, cached) for seconds, cached, replica in (best, *rest)]

    def choose(self, hint: RouteHint, now: float) -> Score | None:
        """The best replica; None where there is none."""
        scores = self._scores(hint, now, self._able(None))
        if not scores:
            return None
        seconds, cached, replica = self._best(scores)
        return Score(replica.id, seconds, cached)

    def sent(self, request_id: str, replica_id: str, hint: RouteHint, now: float) -> None:
        """The request went there. Call `ended` for it, however it ends."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        held = self._prefixes.matched(hint.blocks).get(replica_id, 0)
        cached = self._cached(held, hint.prompt_tokens)
        cost_s = (hint.prompt_tokens - cached) * replica.report.prefill_s_per_token
        replica.changed += self.policy.gates
        replica.sends.append((now, cost_s))
        replica.prefill_until_s = max(replica.prefill_until_s, now) + cost_s * self.policy.gates
        self._prefixes.remember(replica_id, hint.blocks, replica.prefill_until_s + replica.wait_s)
        replica.count(hint.tenant, 1)
        self._sent[request_id] = (replica_id, hint.tenant)
        if len(self._sent) > self.policy.in_flight_max:
            self.ended(next(iter(self._sent)))

    def ended(self, request_id: str) -> None:
        """The request ended, was cancelled or lost its replica. Unknown ones are ignored."""
        replica_id, tenant = self._sent.pop(request_id, ("", ""))
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.changed -= 1.0
            replica.count(tenant, -1)

    def replica_of(self, request_id: str) -> str | None:
        return self._sent[request_id][0] if request_id in self._sent else None

    # --- looking ---------------------------------------------------------------------------------

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self._replicas)

    @property
    def blocks_remembered(self) -> int:
        return len(self._prefixes)

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    # --- inside ----------------------------------------------------------------------------------

    def _able(self, among: Iterable[str] | None) -> list[_Replica]:
        """Replicas that do not drain; where all do, all."""
        names = self._replicas if among is None else among
        known = [self._replicas[name] for name in names if name in self._replicas]
        return [replica for replica in known if not replica.report.draining] or known

    def _scores(self, hint: RouteHint, now: float, able: list[_Replica]) -> list[_Scored]:
        matched = self._prefixes.matched(hint.blocks)
        tokens, gates = hint.prompt_tokens, self.policy.gates
        home = None if matched or gates < 2 else self._home(hint, able)
        scores = []
        for replica in able:
            blocks = matched.get(replica.id)
            cached = self._cached(blocks, tokens) if blocks else 0
            likely = int(HOME_SHARE * tokens) if replica is home else 0
            scores.append((replica.seconds(tokens - cached - likely, hint, now, gates), cached, replica))
        return scores

    @staticmethod
    def _home(hint: RouteHint, able: list[_Replica]) -> _Replica | None:
        """Where other gates send a prompt that begins like this one, if they know as little about it."""
        if not hint.blocks or not able:
            return None
        first = hint.blocks[0].to_bytes(8, "little")
        return max(able, key=lambda replica: hashlib.blake2b(first + replica.id.encode()).digest())

    def _cached(self, blocks: int, prompt_tokens: int) -> int:
        """Prompt tokens that need no prefill there: at least the last one does."""
        return max(0, min(blocks * self.policy.block_tokens, prompt_tokens - 1))

    def _best(self, scores: list[_Scored]) -> _Scored:
        least_s = min([item[0] for item in scores]) + self.policy.tie_s
        equal = [item for item in scores if item[0] <= least_s]
        if len(equal) == 1:
            return equal[0]
        self._turn += 1
        return min(enumerate(equal), key=lambda item: self._tie(item[0], item[1][2], len(equal)))[1]

    def _tie(self, place: int, replica: _Replica, count: int) -> tuple[float, int, bool, int]:
        load = replica.occupied / max(1, replica.report.backlog.slots)
        return (load, self._prefixes.count(replica.id), not replica.local, (place + self._turn) % count)
