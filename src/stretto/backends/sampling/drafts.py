"""Drafts by lookup: what followed the last tokens wherever they occurred before.

Sources, in this order: the request's own tokens, the text that the caller predicts, and recent answers within
the same scope. Of the latest places where the last two tokens occurred, the one with the longest match
counts, then the latest. A lookup is cheap, a draft is not: `core/speculation.py` decides how many pay.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.core.request import Scope

GRAM = 2  # tokens that a place must share to be looked at
PLACES = 16  # latest places that are compared
MATCH_MAX = 32  # tokens compared before a place
SCOPES_MAX = 64
ANSWERS_MAX = 16  # of a scope: a tenant, or part of one
ANSWER_TOKENS_MAX = 2048
LONG_MATCH = 8  # tokens from which on a match is a suffix that the text follows, and no chance
NGRAM, SUFFIX = "ngram", "suffix"  # drafters, by the length of the match
NONE: array[int] = array("i")

_NO_ANSWERS: OrderedDict[str, Corpus] = OrderedDict()

Place = tuple[int, int, "Corpus"]  # tokens in common, position that follows, where


class Corpus:
    """Tokens in which pairs can be found: the first ones are indexed by sorting, the others as they come."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("i", tokens)
        self._pairs, self._order = _sorted_pairs(self.tokens)
        self._later: dict[tuple[int, int], list[int]] = {}  # pair -> positions that follow it

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            end = len(self.tokens)
            self.tokens.append(token)
            if end >= GRAM:  # the pair before this token now has a continuation
                places = self._later.setdefault((self.tokens[end - 2], self.tokens[end - 1]), [])
                places.append(end)
                del places[:-PLACES]

    def best(self, tail: Sequence[int]) -> Place:
        """The place that shares most tokens with the end of `tail`; (0, …) if it has no such pair."""
        found = (0, 0, self)
        for place in self._places(tail[-2], tail[-1]):  # the latest first
            length = _common(self.tokens, place, tail)
            if length > found[0]:
                found = (length, place, self)
        return found

    def after(self, place: int, count: int) -> array[int]:
        return self.tokens[place : place + count]

    def _places(self, first: int, second: int) -> list[int]:
        recent = self._later.get((first, second), [])[::-1]
        if not len(self._pairs):
            return recent
        pair = _pair(first, second)
        begin, end = np.searchsorted(self._pairs, [pair, pair + 1])
        old = self._order[max(begin, end - PLACES) : end][::-1]
        return [*recent, *(int(place) for place in old)][:PLACES]


def _pair(first: int, second: int) -> int:
    return (first << 32) + second


def _sorted_pairs(tokens: array[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs that something follows, sorted, and the positions that follow them; equal ones in order."""
    values = np.frombuffer(tokens, dtype=np.int32).astype(np.int64) if len(tokens) else np.empty(0, np.int64)
    pairs = (values[:-2] << 32) + values[1:-1] if len(values) > GRAM else np.empty(0, np.int64)
    order = np.argsort(pairs, kind="stable")
    return pairs[order], order + GRAM


def _common(tokens: array[int], place: int, tail: Sequence[int]) -> int:
    """Tokens in common before `place` and at the end of `tail`."""
    length = 0
    most = min(place, len(tail), MATCH_MAX)
    while length < most and tokens[place - 1 - length] == tail[-1 - length]:
        length += 1
    return length


class Proposal(NamedTuple):
    """Draft tokens, and what they come from: acceptance is learned for each drafter."""

    tokens: array[int]
    drafter: str


class Drafter:
    """Proposals for one request. While its text follows a place with a long match, it looks no further."""

    def __init__(
        self, tokens: Sequence[int], *, predicted: Sequence[int] = (), others: Sequence[Corpus] = ()
    ) -> None:
        self._own = Corpus(tokens)
        self._others = [*([Corpus(predicted)] if predicted else []), *others]
        self._last: Place = (0, 0, self._own)  # of the last proposal
        self._last_length = 0  # tokens known then

    def __len__(self) -> int:
        return len(self._own.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        self._own.extend(tokens)

    def propose(self, count: int) -> Proposal | None:
        length, place, corpus = self._last = self._followed() or self._found()
        self._last_length = len(self)
        drafts = corpus.after(place, count) if length else NONE
        if corpus is self._own and length:
            drafts = _repeated(drafts, count, period=len(self) - place)
        return Proposal(drafts, SUFFIX if length >= LONG_MATCH else NGRAM) if drafts else None

    def _followed(self) -> Place | None:
        """The place of the last proposal, moved on, if the text went on as it does there."""
        length, place, corpus = self._last
        added = len(self) - self._last_length
        if length + added < LONG_MATCH or not length:
            return None
        if corpus.tokens[place : place + added] != self._own.tokens[self._last_length :]:
            return None
        return min(length + added, MATCH_MAX), place + added, corpus

    def _found(self) -> Place:
        known = self._own.tokens
        if len(known) < GRAM:
            return (0, 0, self._own)
        tail = known[-MATCH_MAX:]
        best = [corpus.best(tail) for corpus in (self._own, *self._others)]
        return max(best, key=lambda each: each[0])  # the first source among equals


def _repeated(drafts: array[int], count: int, *, period: int) -> array[int]:
    """Text that repeats itself has no more than one period after the match: it goes on in the same way."""
    while len(drafts) < count:
        drafts.append(drafts[len(drafts) - period])
    return drafts


class RecentAnswers:
    """The last answers of each scope, for its own requests alone. Bounded in scopes, answers and tokens."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[Scope, OrderedDict[str, Corpus]] = OrderedDict()

    def add(self, scope: Scope, request_id: str, answer: Sequence[int]) -> None:
        """A request that was preempted and comes again replaces its own answer."""
        if len(answer) <= GRAM:
            return
        answers = self._scopes.setdefault(scope, OrderedDict())
        self._scopes.move_to_end(scope)
        corpus = answers[request_id] = Corpus(NONE)  # not sorted: each proposal looks in all answers
        corpus.extend(answer[:ANSWER_TOKENS_MAX])
        answers.move_to_end(request_id)
        if len(answers) > ANSWERS_MAX:
            answers.popitem(last=False)
        if len(self._scopes) > SCOPES_MAX:
            self._scopes.popitem(last=False)

    def of(self, scope: Scope) -> list[Corpus]:
        """The latest first."""
        return list(reversed(self._scopes.get(scope, _NO_ANSWERS).values()))
