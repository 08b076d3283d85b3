"""Drafts of the requests bound to slots: their tokens on the host, and proposals for the next tick.

Knows tokens and drafters, not the device. Tokens are only kept until a tick wants proposals: making a drafter
costs more than the rest of a tick's work on the host. Keeping them costs a few operations for each tick, not
for each slot: ticks with one token for each of the same slots form a run, and a request reads its column of
the run when it makes proposals, ends, or the run does.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from stretto.backends.drafting.asking import Proposing, ask
from stretto.backends.drafting.texts import Wanted
from stretto.backends.sampling.drafts import SUFFIX, Drafter, Proposal, RecentAnswers
from stretto.core.request import Request
from stretto.core.tick import Binding, Outcome, Tick

RUN_TICKS_MAX = 1024


class DraftSource(Protocol):
    """Proposals for one request, whose tokens so far it was made with."""

    def extend(self, tokens: Sequence[int]) -> None: ...
    def propose(self, count: int) -> Proposal | None: ...


class SlotDrafter(Proposing, Protocol):
    """A draft model, which is told when requests leave their slots."""

    def release(self, slot: int) -> None: ...


MakeDrafter = Callable[[Request, "array[int]"], DraftSource]  # the request, and all its tokens so far


class DraftedRequest:
    """One request in a slot, and its tokens."""

    __slots__ = ("_drafter", "_most", "_seen", "output", "prompt", "request")

    def __init__(self, binding: Binding, most: int) -> None:
        self.request = binding.request
        self.prompt = len(binding.request.tokens)
        self.output = array("i", binding.generated)
        self._most = most
        self._drafter: DraftSource | None = None
        self._seen = 0  # output tokens that the drafter has

    def take(self, position: int, tokens: array[int]) -> None:
        """Tokens from the row at `position` on. Those after it are not valid any more: a pass failed."""
        index = position + 1 - self.prompt
        if index < len(self.output):
            del self.output[index:]
            self._drafter = None
        self.output.extend(tokens)

    @property
    def known(self) -> array[int]:
        """All its tokens so far."""
        known = array("i", self.request.tokens)
        known.extend(self.output)
        return known

    def wanted(self, count: int) -> Wanted:
        return Wanted(self.known, min(count, self._most))

    def propose(self, count: int, make: MakeDrafter) -> Proposal | None:
        if self._drafter is None:
            self._drafter = make(self.request, self.known)
        else:
            self._drafter.extend(self.output[self._seen :])
        self._seen = len(self.output)
        return self._drafter.propose(min(count, self._most))


class TickRun:
    """Consecutive ticks, each with one token for each of the same slots, and what was read of them."""

    def __init__(self, drafted: dict[int, DraftedRequest], tick: Tick) -> None:
        self._drafted = drafted
        self._slots = tick.slots
        self._starts = tick.starts
        self._columns: dict[int, int] | None = None  # of slots; made when first needed
        self._read: dict[int, int] = {}  # slot -> ticks
        self._ticks: list[array[int]] = []

    def takes(self, drafted: dict[int, DraftedRequest], tick: Tick) -> bool:
        """Whether a tick with one token for each slot goes on where the last one ended."""
        if drafted is not self._drafted or len(self._ticks) >= RUN_TICKS_MAX or tick.slots != self._slots:
            return False
        ahead = np.frombuffer(tick.starts, np.int32) - np.frombuffer(self._starts, np.int32)
        return bool((ahead == len(self._ticks)).all())

    def add(self, tokens: array[int]) -> None:
        self._ticks.append(tokens)

    def read(self, slot: int) -> None:
        """Give a request the tokens that it has not read yet."""
        request = self._drafted.get(slot)
        first = self._read.get(slot, 0)
        if request is None or first == len(self._ticks):
            return
        if self._columns is None:
            self._columns = {each: at for at, each in enumerate(self._slots)}
        at = self._columns[slot]
        self._read[slot] = len(self._ticks)
        request.take(self._starts[at] + first, array("i", [tokens[at] for tokens in self._ticks[first:]]))

    def read_all(self) -> None:
        """As `read`, for all slots: the columns are cut from one matrix."""
        count = len(self._ticks)
        matrix = np.frombuffer(b"".join(self._ticks), np.int32).reshape(count, len(self._slots))
        columns = np.ascontiguousarray(matrix.T)
        for at, slot in enumerate(self._slots):
            first, request = self._read.get(slot, 0), self._drafted.get(slot)
            if request is not None and first < count:
                request.take(self._starts[at] + first, array("i", columns[at, first:].tobytes()))


class TorchDrafts:
    """All drafted requests by slot. `make` may be replaced before the first request, and `model` set."""

    def __init__(self, drafts_max: int) -> None:
        self.drafts_max = drafts_max
        self.make: MakeDrafter = self._by_lookup
        self.model: SlotDrafter | None = None
        self._recent = RecentAnswers()
        self._requests: dict[int, DraftedRequest] = {}
        self._run: TickRun | None = None
        self._of: tuple[array[int], dict[int, DraftedRequest]] | None = None  # the last answer of `of`

    def update(self, unbind: Sequence[int], bind: Sequence[Binding]) -> None:
        if unbind or bind:
            self._of = None
        for slot in unbind:
            self._end(slot)
        for binding in bind:
            self._end(binding.slot)  # of a slot that is bound again at once, nothing else tells
            params = binding.request.params
            most = min(params.draft_tokens, self.drafts_max)
            if most > 0 and params.history_free:
                self._requests[binding.slot] = DraftedRequest(binding, most)

    def _end(self, slot: int) -> None:
        """The request in this slot, if it has drafts, leaves it."""
        ended = self._requests.pop(slot, None)
        if ended is not None:
            if self._run is not None:
                self._run.read(slot)
            if self.model is not None:
                self.model.release(slot)
            self._recent.add(ended.request.scope, ended.request.id, ended.output)

    def of(self, tick: Tick) -> dict[int, DraftedRequest]:
        """The drafted requests of a tick that is launched: slots may have others when it is collected."""
        if self._of is None or self._of[0] != tick.slots:
            self._of = tick.slots, {s: self._requests[s] for s in tick.slots if s in self._requests}
        return self._of[1]

    def take(self, drafted: dict[int, DraftedRequest], tick: Tick, outcome: Outcome) -> None:
        """Keeps the tokens of a collected tick, and proposes what may follow them where that is wanted."""
        if len(outcome.tokens) == len(tick.tokens) == len(tick.slots):  # one row and one token for each
            if self._run is None or not self._run.takes(drafted, tick):
                self._end_run()
                self._run = TickRun(drafted, tick)
            self._run.add(outcome.tokens)
        else:
            self._end_run()
            self._take_spans(drafted, tick, outcome)
        if tick.propose:
            self._propose(drafted, tick, outcome)
        if tick.ask_model:
            self._ask_model(drafted, tick, outcome)

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.read_all()
            self._run = None

    def _take_spans(self, drafted: dict[int, DraftedRequest], tick: Tick, outcome: Outcome) -> None:
        at = 0
        spans = zip(tick.slots, tick.starts, tick.counts, tick.outputs, outcome.counts, strict=True)
        for slot, start, count, outputs, got in spans:
            at += got
            if got and slot in drafted:
                drafted[slot].take(start + count - outputs, outcome.tokens[at - got : at])

    def _propose(self, drafted: dict[int, DraftedRequest], tick: Tick, outcome: Outcome) -> None:
        started = time.perf_counter()
        for slot, count in tick.propose.items():
            request = drafted.get(slot) if slot not in outcome.failed else None
            if request is not None and self._run is not None:
                self._run.read(slot)
            found = request.propose(count, self.make) if request is not None else None
            if found is not None:
                outcome.drafts[slot], outcome.drafters[slot] = found
        outcome.draft_s = time.perf_counter() - started

    def _ask_model(self, drafted: dict[int, DraftedRequest], tick: Tick, outcome: Outcome) -> None:
        """Has the draft model continue what was not found, or found by a short match only."""
        started = time.perf_counter()
        wanted: dict[int, Wanted] = {}
        for slot, count in tick.ask_model.items():
            if slot in drafted and slot not in outcome.failed and outcome.drafters.get(slot) != SUFFIX:
                if self._run is not None:
                    self._run.read(slot)
                wanted[slot] = drafted[slot].wanted(count)
        if self.model is not None and wanted and not ask(self.model, wanted, outcome):
            self.model = None
        outcome.draft_s += time.perf_counter() - started

    def _by_lookup(self, request: Request, known: array[int]) -> DraftSource:
        return Drafter(known, predicted=request.predicted, others=self._recent.of(request.scope))
