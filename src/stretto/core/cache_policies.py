"""Cache policies: what to keep of a prompt, and which cached prefix a new one starts from.

Each policy is two pure functions. `keep` names the lengths worth saving; `route` turns what a ledger found
into a verdict: admit (from a source or from nothing), or defer until a prefix in progress is available. A
policy has no state, so a deferred request blocks no other, and its verdict can be computed again every tick.

none            keeps nothing, starts from nothing
system_prompt   keeps the first message, apart from all slots; starts from exactly the prompt that was sent
incremental     keeps each conversation; extends it, else trims it; if its slot is busy: shares it, else waits
prefix          keeps everything computed; starts from the cheapest source, waits for one in progress
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.core.kv.ledger import Match, PrefixKind, Source
from stretto.core.slot import Defer, Job, WaitFor


@dataclass(frozen=True, slots=True)
class Admit:
    source: Source | None


Verdict = Admit | Defer


@dataclass(frozen=True, slots=True)
class Situation:
    """What `route` may use besides the match."""

    job: Job
    match: Match
    cache_min_tokens: int
    prefill_s_per_token: float
    page_tokens: int  # 1 where prefixes are not shared by pages
    patient: bool  # False once the request has waited its cache_slot_timeout
    request_in: Callable[[int], str]  # request id of a slot, empty when idle


class Policy:
    """What all policies share: resumed requests and forks reuse KV under every one."""

    name = "none"
    keeps_resident = False  # idle sequences keep what they hold, for other requests
    rejects_while_building = False  # requests that wait too long meanwhile are told `server busy`

    def keep(self, job: Job) -> tuple[int, ...]:
        return ()

    def keep_at_close(self, job: Job, computed: int) -> int:
        return computed if self.keeps_resident else 0

    def route(self, situation: Situation) -> Verdict:
        return self._resume(situation) or fork(situation) or self.route_new(situation)

    def _resume(self, situation: Situation) -> Verdict | None:
        """A preempted request resumes from its own KV, also where no other request may use it."""
        if not situation.job.preemptions:
            return None
        own = [s for s in situation.match.sources if self.keeps_resident or s.kind is not PrefixKind.RUNNING]
        return Admit(max(own, key=lambda s: (s.length, -s.seconds))) if own else None

    def route_new(self, situation: Situation) -> Verdict:
        return Admit(None)


class NoCache(Policy):
    pass


class SystemPrompt(Policy):
    name = "system_prompt"

    def keep(self, job: Job) -> tuple[int, ...]:
        return job.request.boundaries[:1]

    def keep_at_close(self, job: Job, computed: int) -> int:
        return min(computed, *job.request.boundaries[:1]) if job.request.boundaries else 0

    def route_new(self, situation: Situation) -> Verdict:
        """Only KV that was computed for exactly this system prompt."""
        for own in self.keep(situation.job):
            for source in situation.match.sources:
                exact = source.kind is PrefixKind.SNAPSHOT and source.held == source.common == own
                whole = own - own % situation.page_tokens  # the part that fills whole pages
                paged = source.kind is PrefixKind.PAGES and 0 < whole <= source.length <= own
                if own >= situation.cache_min_tokens and (exact or paged):
                    return Admit(source)
        return Admit(None)


class Incremental(Policy):
    name = "incremental"
    keeps_resident = True
    rejects_while_building = True

    def keep(self, job: Job) -> tuple[int, ...]:
        return job.request.boundaries[-1:]

    def route_new(self, situation: Situation) -> Verdict:
        """The conversation's own entry; while a request runs in it, share it or wait for it."""
        sources = worthwhile(situation)
        best = max(sources, key=lambda s: (s.extends, s.length, -s.seconds), default=None)
        have = best.length if best is not None else 0
        for what, donor in ((WaitFor.LENGTH, situation.match.coming), (WaitFor.IDLE, situation.match.busy)):
            if donor is not None and situation.patient and donor.length - have >= situation.cache_min_tokens:
                return Defer(what, donor.slot, donor.request_id, donor.length)
        return Admit(best)


class Prefix(Policy):
    name = "prefix"
    keeps_resident = True

    def keep(self, job: Job) -> tuple[int, ...]:
        boundaries = job.request.boundaries
        return tuple(sorted({*boundaries[:1], *boundaries[-1:]}))

    def route_new(self, situation: Situation) -> Verdict:
        """The source that saves most time, or wait for a request that is computing this prefix."""
        per_token = situation.prefill_s_per_token
        sources = worthwhile(situation)
        best = max(sources, key=lambda s: (s.length * per_token - s.seconds, s.length), default=None)
        coming, have = situation.match.coming, best.length if best is not None else 0
        if coming is not None and situation.patient and coming.length - have >= situation.cache_min_tokens:
            return Defer(WaitFor.LENGTH, coming.slot, coming.request_id, coming.length)
        if best is not None and best.length * per_token < best.seconds:
            best = None
        return Admit(best)


POLICIES: dict[str, Policy] = {p.name: p for p in (NoCache(), SystemPrompt(), Incremental(), Prefix())}


def worthwhile(situation: Situation) -> list[Source]:
    """Adopting an idle sequence or sharing pages is free; copies and restores must save enough."""
    least = situation.cache_min_tokens
    free = (PrefixKind.RESIDENT, PrefixKind.PAGES)
    return [s for s in situation.match.sources if s.length >= least or s.kind in free]


def fork(situation: Situation) -> Verdict | None:
    """The branches of n > 1 share their parent's KV under every policy."""
    parent, match = situation.job.request.fork_of, situation.match
    if not parent:
        return None
    coming = match.coming
    if coming is not None and coming.request_id == parent and situation.patient:
        return Defer(WaitFor.LENGTH, coming.slot, parent, coming.length)
    for source in match.sources:
        if source.slot >= 0 and situation.request_in(source.slot) == parent:
            return Admit(source)
    return None
