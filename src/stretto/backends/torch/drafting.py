"""Drafts of the requests bound to slots: their tokens on the host, and proposals for the next tick.

Knows tokens and drafters, not the device. Tokens are only kept until a tick wants proposals: making a drafter
costs more than the rest of a tick's work on the host.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from typing import Protocol

from stretto.backends.sampling.drafts import Drafter, Proposal, RecentAnswers
from stretto.core.request import Request
from stretto.core.tick import Binding, Outcome, Tick


class DraftSource(Protocol):
    """Proposals for one request, whose tokens so far it was made with."""

    def extend(self, tokens: Iterable[int]) -> None: ...
    def propose(self, count: int) -> Proposal | None: ...


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

    def propose(self, count: int, make: MakeDrafter) -> Proposal | None:
        if self._drafter is None:
            known = array("i", self.request.tokens)
            known.extend(self.output)
            self._drafter = make(self.request, known)
        else:
            self._drafter.extend(self.output[self._seen :])
        self._seen = len(self.output)
        return self._drafter.propose(min(count, self._most))


class TorchDrafts:
    """All drafted requests by slot. `make` may be replaced before the first request."""

    def __init__(self, drafts_max: int) -> None:
        self.drafts_max = drafts_max
        self.make: MakeDrafter = self._by_lookup
        self._recent = RecentAnswers()
        self._requests: dict[int, DraftedRequest] = {}

    def update(self, unbind: Iterable[int], bind: Iterable[Binding]) -> None:
        for slot in unbind:
            ended = self._requests.pop(slot, None)
            if ended is not None:
                self._recent.add(ended.request.scope, ended.request.id, ended.output)
        for binding in bind:
            self._requests.pop(binding.slot, None)
            params = binding.request.params
            most = min(params.draft_tokens, self.drafts_max)
            if most > 0 and params.history_free:
                self._requests[binding.slot] = DraftedRequest(binding, most)

    def of(self, tick: Tick) -> dict[int, DraftedRequest]:
        """The drafted requests of a tick that is launched: slots may have others when it is collected."""
        return {slot: self._requests[slot] for slot in tick.slots if slot in self._requests}

    def take(self, drafted: dict[int, DraftedRequest], tick: Tick, outcome: Outcome) -> None:
        """Keeps the tokens of a collected tick, and proposes what may follow them where that is wanted."""
        at = 0
        spans = zip(tick.slots, tick.starts, tick.counts, tick.outputs, outcome.counts, strict=True)
        for slot, start, count, outputs, got in spans:
            at += got
            if got and slot in drafted:
                drafted[slot].take(start + count - outputs, outcome.tokens[at - got : at])
        if tick.propose:
            self._propose(drafted, tick, outcome)

    def _propose(self, drafted: dict[int, DraftedRequest], tick: Tick, outcome: Outcome) -> None:
        started = time.perf_counter()
        for slot, count in tick.propose.items():
            request = drafted.get(slot) if slot not in outcome.failed else None
            found = request.propose(count, self.make) if request is not None else None
            if found is not None:
                outcome.drafts[slot], outcome.drafters[slot] = found
        outcome.draft_s = time.perf_counter() - started

    def _by_lookup(self, request: Request, known: array[int]) -> DraftSource:
        return Drafter(known, predicted=request.predicted, others=self._recent.of(request.scope))
