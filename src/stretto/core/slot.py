"""Slot and Job: a place in the running set, and the scheduler's state of a request.

A slot has no phases. It has `known` tokens; the KV of the first `computed` ones is certain, and rows for the
first `planned` ones are computed or in flight:

    known     t0 t1 t2 t3 t4 t5 t6 t7
    planned   t0 t1 t2 t3 t4 t5
    computed  t0 t1 t2

It prefills while more than one known token is not planned, then it generates. Chunking, resuming,
speculation, forks and planning ahead need no other state. `Slot.state` (idle, prefilling, generating) is for
telemetry. A job outlives its slot: a preempted one keeps its tokens and resumes later, possibly in another
slot.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stretto.core.fairness import TOKEN_COST, Account
from stretto.core.media import Media, cut
from stretto.core.request import AdapterGroup, Request

_EMPTY: array[int] = array("i")
NEVER = 1 << 62


class Status(Enum):
    """The status of a job. Its progress is in its slot."""

    UNREADY = "unready"  # its media are being encoded, or its adapters loaded
    WAITING = "waiting"
    DEFERRED = "deferred"
    PREEMPTED = "preempted"
    RUNNING = "running"
    ENDED = "ended"


class WaitFor(Enum):
    IDLE = "idle"  # the slot that holds the conversation finishes
    LENGTH = "length"  # the slot has computed the tokens in common


@dataclass(frozen=True, slots=True)
class Defer:
    """Wait for `slot` while it runs `request_id`; ends by itself when the time-out is over."""

    what: WaitFor
    slot: int
    request_id: str
    length: int


class Comparison(NamedTuple):
    """A proposal that is not verified: it is compared with what plain decoding gives."""

    begin: int  # position of its first token
    tokens: array[int]
    drafter: str

    def judged(self, known: array[int]) -> tuple[int, int] | None:
        """How many of its tokens were right, and how many are judged by now; None: it is not over."""
        end = min(len(known), self.begin + len(self.tokens))
        at = self.begin
        while at < end and known[at] == self.tokens[at - self.begin]:
            at += 1
        if at < end:
            return at - self.begin, at - self.begin + 1
        return (len(self.tokens), len(self.tokens)) if end == self.begin + len(self.tokens) else None


class DraftRecord:
    """Draft tokens of a request: how many were verified and accepted, in all and by drafter recently."""

    __slots__ = ("_recent", "accepted", "by_drafter", "proposed", "trials")

    def __init__(self) -> None:
        self.proposed = 0
        self.accepted = 0
        self.trials = 0  # ticks with drafts
        self.by_drafter: dict[str, tuple[int, int]] = {}  # proposed, accepted
        self._recent: dict[str, tuple[float, float]] = {}

    def of(self, drafter: str) -> tuple[float, float]:
        """Drafts accepted and judged, the older the less: those after a rejected draft are not judged."""
        return self._recent.get(drafter, (0.0, 0.0))

    def add(self, drafter: str, proposed: int, accepted: int) -> None:
        self.proposed += proposed
        self.accepted += accepted
        before = self.by_drafter.get(drafter, (0, 0))
        self.by_drafter[drafter] = (before[0] + proposed, before[1] + accepted)

    def observe(self, drafter: str, hits: int, tries: int, memory: float) -> None:
        before = self.of(drafter)
        self._recent[drafter] = (before[0] * memory + hits, before[1] * memory + tries)


class Job:
    """Mutable, core only. One for each accepted request, from submit to its terminal event."""

    __slots__ = (
        "account",
        "admitted_s",
        "arrival",
        "arrival_s",
        "cached",
        "caller_since_s",
        "cancelled",
        "deferrals",
        "draft_tokens",
        "drafts",
        "encoded_s",
        "encoding_s",
        "entered_s",
        "first_token_s",
        "held_s",
        "high_water",
        "id",
        "known",
        "length_max",
        "media",
        "needs",
        "page_digests",
        "preempted_at_s",
        "preemptions",
        "prepaid",
        "priority",
        "prompt_tokens",
        "request",
        "scope",
        "slice_preemptions",
        "status",
        "stopped_at",
        "stops",
        "time_sliced",
        "token_charge",
        "wait_for",
    )

    def __init__(
        self, request: Request, *, arrival: int, account: Account, now: float, length_max: int
    ) -> None:
        params = request.params
        self.request = request
        self.id = request.id
        self.scope = request.scope
        self.known = array("i", request.tokens) + request.resumed
        self.page_digests: dict[str, list[bytes]] = {}  # of `known`, by owner: see kv.page_index
        self.prompt_tokens = len(request.tokens)
        self.media = request.media
        self.length_max = length_max  # prompt and output together
        self.stops = frozenset() if params.ignore_eos else params.stop_token_ids
        self.priority = int(request.priority)
        self.arrival = arrival  # arrival number, kept for life
        self.account = account
        self.token_charge = TOKEN_COST / account.weight  # what one generated token costs the tenant
        self.prepaid = 0.0  # charged in advance and not used yet
        self.arrival_s = now
        self.caller_since_s = now  # when it began to wait as a caller
        self.entered_s: float | None = None  # when it took one of the in-flight places
        self.encoded_s: float | None = None  # its media
        self.encoding_s = 0.0  # how long that took, without the time for the media of others before
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.needs = list(request.needs)  # what it still waits for
        self.status = Status.UNREADY if self.needs else Status.WAITING
        self.preemptions = 0
        self.slice_preemptions = 0  # of these, for a time slice of another stream
        self.time_sliced = False  # the last preemption was for a time slice
        self.preempted_at_s = now
        self.held_s = 0.0  # time in slots before, where only time slices came between
        self.high_water = 0  # tokens ever computed: redone work is free
        self.cached = 0
        self.cancelled = ""  # reason, once asked for
        self.stopped_at = -1  # tokens kept, once the text layer saw a stop string
        self.deferrals = 0
        self.draft_tokens = params.draft_tokens  # most drafts at a time
        self.drafts = DraftRecord()
        self.wait_for: Defer | None = None  # while deferred

    def cut(self, length: int) -> int:
        """As much of a cached prefix as it may start from."""
        return cut(self.media, length) if self.media else length

    def pay(self, cost: float) -> None:
        """Charge the prepaid amount first. What it overdraws is settled when the slot is released."""
        if self.prepaid > 0.0:
            self.prepaid -= cost
        else:
            self.account.served += cost

    @property
    def waits_since_s(self) -> float:
        """When its current wait for a slot began: by preemption, entry into the queue, or arrival."""
        if self.status is Status.PREEMPTED:
            return self.preempted_at_s
        return self.arrival_s if self.entered_s is None else self.entered_s

    @property
    def generated(self) -> int:
        return len(self.known) - self.prompt_tokens

    @property
    def output(self) -> array[int]:
        return self.known[self.prompt_tokens :]


class Slot:
    """Mutable, core only. `index` is the row of a GPU's state tables; `sequence` is where its KV lives."""

    __slots__ = (
        "checkpoint_at",
        "compared",
        "computed",
        "drafter",
        "drafts",
        "epoch",
        "index",
        "job",
        "known",
        "media",
        "pending",
        "planned",
        "proposals",
        "proposing",
        "rebuilds",
        "replay_from",
        "room",
        "sequence",
        "started_at",
        "started_s",
        "tokens_min",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.epoch = 0  # grows at every release: rows of an older epoch in flight are discarded
        self.clear()

    def clear(self) -> None:
        self.job: Job | None = None
        self.known = _EMPTY
        self.media: Media = ()  # of its request
        self.sequence = -1
        self.computed = 0  # tokens whose KV is certain
        self.planned = 0  # computed, and what is in flight
        self.pending = 0  # outputs in flight: known will grow by at least as many
        self.room = 0  # tokens for which the ledger has reserved memory
        self.drafts = _EMPTY  # drafts to verify next
        self.drafter = ""  # that made them
        self.compared: Comparison | None = None
        self.proposals = 0  # of the draft rows in flight; the others are padding
        self.proposing = False  # the tick in flight makes drafts for it
        self.checkpoint_at: tuple[int, ...] = ()  # lengths still ahead at which state is saved
        self.started_s = 0.0
        self.started_at = 0  # tokens computed when this residency began: progress counts from here
        self.tokens_min = 1  # progress in this residency before it yields to a more urgent request
        self.rebuilds = 0
        self.replay_from = (
            NEVER  # from here on known tokens run one row per tick, as when they were generated
        )

    @property
    def arrival(self) -> int:
        """The arrival number of its request: smaller is older."""
        return self.job.arrival if self.job is not None else NEVER

    @property
    def priority(self) -> int:
        """The priority of its request: smaller is more urgent."""
        return self.job.priority if self.job is not None else 0

    @property
    def adapters(self) -> AdapterGroup:
        return self.job.scope.adapters if self.job is not None else ()

    @property
    def rows_due(self) -> int:
        """Tokens, known or about to be, that no tick has rows for yet."""
        return len(self.known) + self.pending - self.planned

    @property
    def prefill_due(self) -> int:
        """Of these, rows that may run as prompt chunks."""
        return min(len(self.known) + self.pending, self.replay_from) - self.planned

    @property
    def replays(self) -> bool:
        """Its KV was lost, and the next row was a decode row: it runs as one again."""
        return self.planned >= self.replay_from and self.rows_due > 1

    @property
    def state(self) -> str:
        if self.job is None:
            return "idle"
        return "prefilling" if len(self.known) - self.computed > 1 else "generating"
