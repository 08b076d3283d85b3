"""What crosses between scheduler and backend: a Tick goes out, an Outcome comes back, Events go up.

Per-token data are columns (arrays), because one object per token costs more than the scheduling.
A span is one slot's share of the tick: `counts[i]` rows from position `starts[i]`, of which the last
`outputs[i]` produce a token. `tokens` holds the rows of all spans one after the other, never padded.
The rows of a span are all tokens, or all rows of one picture or sound (`Tick.media`).
A token of -1 means the one that the previous tick samples for this slot (only with `plan_ahead`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from stretto.core.ops import KvOp, OpResult
from stretto.core.request import AdapterGroup, Request
from stretto.errors import StrettoError

_NO_DRAFTERS: Mapping[str, tuple[int, int]] = MappingProxyType({})

PENDING_TOKEN = -1


def _ints() -> array[int]:
    return array("i")


class Span(NamedTuple):
    """One span by name, where speed does not matter."""

    slot: int
    sequence: int
    start: int
    rows: int
    outputs: int


class MediaChunk(NamedTuple):
    """Span `span` of the tick holds rows of media `number` of its request, from row `offset` of those on."""

    span: int
    number: int
    offset: int


class TableUpdate(NamedTuple):
    """Pages that a slot's block table gains, from index `offset` on (later entries are dropped)."""

    slot: int
    offset: int
    pages: tuple[int, ...]


class Binding(NamedTuple):
    """A request takes a slot: the backend builds its sampler, grammar and penalties from the tokens."""

    slot: int
    request: Request
    generated: array[int]


@dataclass(slots=True)
class Tick:
    id: int
    ops: tuple[KvOp, ...] = ()
    slots: array[int] = field(default_factory=_ints)
    sequences: array[int] = field(default_factory=_ints)
    starts: array[int] = field(default_factory=_ints)
    counts: array[int] = field(default_factory=_ints)
    outputs: array[int] = field(default_factory=_ints)
    tokens: array[int] = field(default_factory=_ints)
    tables: tuple[TableUpdate, ...] = ()
    bind: tuple[Binding, ...] = ()
    unbind: tuple[int, ...] = ()
    decode_rows: int = 0  # decode spans come first
    decode_spans: int = 0
    predicted_s: float = 0.0
    adapters: AdapterGroup = ()  # of all its rows, where a tick has one group (`Capabilities.one_group`)
    changes_adapters: bool = False  # the tick before it had others
    media: tuple[MediaChunk, ...] = ()  # the spans that hold no tokens
    unhurried: bool = False  # its rows of media are few, because streams wait for it
    propose: dict[int, int] = field(default_factory=dict)  # slot -> drafts of the next tick that may pay
    ask_model: dict[int, int] = field(
        default_factory=dict
    )  # likewise of a draft model; 0: how far behind is it?
    model_drafts: bool = False  # some of the drafts in it come from a draft model
    awaited: bool = False  # proposals need its tokens: the next tick is planned when it is committed

    def spans(self) -> Iterator[Span]:
        return map(Span, self.slots, self.sequences, self.starts, self.counts, self.outputs)

    @property
    def rows(self) -> int:
        return len(self.tokens)


class Idle(NamedTuple):
    """Nothing to run now. Block until woken, or until `until_s` when a deadline or time-out is due."""

    until_s: float | None


class PassFailure(Enum):
    NO_ROOM = "no_room"  # nothing ran and nothing changed: memory was short (llama_decode returned 1)
    FAILED = "failed"  # the pass broke; `recover` has trimmed back what it could
    VOID = "void"  # not run, because the tick before it failed


class PromptScores(NamedTuple):
    """Measurements of prompt tokens: of the one at position `start`, and of those that follow it."""

    start: int
    measured: list[object]


class Progress(NamedTuple):
    """How much of a prompt is computed; `cached` of it was found."""

    computed: int
    total: int
    cached: int


@dataclass(slots=True)
class Outcome:
    """What became of a tick. `counts[i]` tokens came from span i; `tokens` holds them one after the other."""

    tick_id: int
    tokens: array[int] = field(default_factory=_ints)
    counts: array[int] = field(default_factory=_ints)
    failed: dict[int, str] = field(default_factory=dict)  # slot -> error code; other slots are not affected
    op_results: tuple[OpResult, ...] = ()
    drafts: dict[int, array[int]] = field(default_factory=dict)  # proposals for the next tick
    drafters: dict[int, str] = field(default_factory=dict)  # slot -> what made them; several learn apart
    draft_s: float = 0.0  # what making them took, not part of pass_s
    model_passes: list[tuple[int, float]] = field(default_factory=list)  # rows and seconds, a part of draft_s
    behind: dict[int, int] = field(default_factory=dict)  # slot -> rows that the draft model has not computed
    model_lost: bool = False  # the draft model was given up
    extras: dict[int, object] = field(default_factory=dict)  # slot -> logprobs and the like, passed through
    scores: dict[int, PromptScores] = field(default_factory=dict)  # slot -> logprobs of prompt tokens
    ran: bool = True  # did rows run where sequences live? Copies between them happen only then
    pass_s: float = 0.0
    ops_s: float = 0.0
    failure: PassFailure | None = None
    lost: frozenset[int] = frozenset()  # sequences that `recover` could not bring back


class End(Enum):
    """How a request ends. Exactly one of these, exactly once."""

    FINISHED = "finished"  # reason: stop | length
    CANCELLED = "cancelled"  # reason: client | deadline | shutdown
    FAILED = "failed"  # reason: an error code
    REJECTED = "rejected"  # reason: an error code


class PreemptReason(Enum):
    """Why a running request lost its slot. The values are the labels of metrics."""

    PRIORITY = "priority"  # a strictly more urgent request needed the slot or the memory
    TIMEOUT = "timeout"  # a queued request had waited `cache_slot_timeout`
    MEMORY = "memory"  # KV memory was short
    TIME_SLICE = "time_slice"  # another stream of the same tenant gets its share of the slot


class Preempted(NamedTuple):
    """The one record of a slot that was taken away: from which request, why, and for which one."""

    request_id: str
    slot: int
    reason: PreemptReason
    resumes: bool  # False: it ended with an error (`preemption: fail`)
    held_s: float  # how long it had held a slot, time slices included
    tokens: int  # computed in this residency, beyond what it had ever computed before
    waiter_id: str = ""  # the request that gets the slot or the memory; empty: none in particular
    waiter_priority: int = 0
    waited_s: float = 0.0
    same_tenant: bool = False


class Started(NamedTuple):
    """A request got its first slot. `queue_wait_s` counts from arrival."""

    request_id: str
    queue_wait_s: float
    prompt_tokens: int
    cached_tokens: int


class Terminal(NamedTuple):
    """How a request ended, with its measurements. Times count from arrival.

    `queue_wait_s` of a request that never had a slot (`admitted` is False) is all the time it waited.
    `computed_tokens` are those prompt tokens that were computed for it; work that was redone does not count.
    """

    request_id: str
    end: End
    reason: str
    tokens_kept: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    duration_s: float
    queue_wait_s: float
    ttft_s: float | None
    preempted: Preempted | None = None  # where that is how it ended
    admitted: bool = True
    computed_tokens: int = 0
    proposed_drafts: int = 0
    accepted_drafts: int = 0
    encode_s: float = 0.0  # of `queue_wait_s`: until its media were encoded
    error: StrettoError | None = None  # where more is known than its code
    drafters: Mapping[str, tuple[int, int]] = _NO_DRAFTERS  # drafts proposed and accepted, by drafter

    @property
    def prompt_eval_rate(self) -> float:
        """Prompt tokens per second between admission and the first token; 0 where there was none."""
        busy_s = (self.ttft_s or 0.0) - self.queue_wait_s
        return (self.prompt_tokens - self.cached_tokens) / busy_s if busy_s > 0 else 0.0

    @property
    def generation_rate(self) -> float:
        busy_s = self.duration_s - (self.ttft_s or 0.0)
        return (self.generated_tokens - 1) / busy_s if busy_s > 0 and self.generated_tokens > 1 else 0.0


class Note(NamedTuple):
    """One log event; its name is one of `event_names`."""

    name: str
    request_id: str
    slot: int
    value: float


class TickMeasures(NamedTuple):
    """Measurements of one tick."""

    batch_size: int
    decode_tokens: int
    prefill_tokens: int
    active_slots: int
    queue_depth: int
    eval_s: float


@dataclass(slots=True)
class Events:
    """What happened since the last look: token columns, starts, ends, notes, preemptions."""

    requests: list[str] = field(default_factory=list)
    counts: array[int] = field(default_factory=_ints)
    tokens: array[int] = field(default_factory=_ints)
    extras: dict[str, object] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)
    scores: dict[str, PromptScores] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    ends: list[Terminal] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    preemptions: list[Preempted] = field(default_factory=list)
    tick: TickMeasures | None = None

    def __bool__(self) -> bool:
        return bool(self.requests or self.started or self.ends or self.notes or self.tick)
