"""Drafts by lookup: what followed the last tokens wherever they occurred before.

Sources, in this order: the request's own tokens, the text that the caller predicts, and recent answers within
the same scope. Of the latest places where the last two tokens occurred, the one with the longest match
counts, then the latest. A lookup is cheap, a draft is not: `core/speculation.py` decides how many pay.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stretto.core.request import Scope

GRAM = 2  # tokens that a place must share to be looked at
PLACES = 16  # latest places that are compared
MATCH_MAX = 32  # tokens compared before a place
ANSWERS_MAX = 8  # of a scope, a tenant or part of one, in each of two texts
ANSWER_TOKENS_MAX = 2048
TEXT_TOKENS_MAX = ANSWERS_MAX * ANSWER_TOKENS_MAX
SCOPES_MAX = 64
TOKENS_MAX = 1 << 18  # of the answers of all scopes: each takes about 150 bytes
END = -1  # between answers: no token, and no row of media
LONG_MATCH = 8  # tokens from which on a match is a suffix that the text follows, and no chance
NGRAM, SUFFIX = "ngram", "suffix"  # drafters, by the length of the match
NONE: array[int] = array("i")

Place = tuple[int, int, "Corpus"]  # tokens in common, position that follows, where


class Corpus:
    """Tokens in which pairs can be found: the first ones are indexed by sorting, the others as they come."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("i", tokens)
        self._pairs, self._order = _sorted_pairs(self.tokens)
        self._latest: dict[int, int] = {}  # pair -> the last position that follows it, of later tokens
        self._earlier = array("i", bytes(4 * len(self.tokens)))  # … -> the one before it; 0: none

    def extend(self, tokens: Sequence[int]) -> None:
        latest, earlier = self._latest, self._earlier
        first, second = [END, END, *self.tokens[-GRAM:]][-GRAM:]
        for at, token in enumerate(tokens, len(self.tokens)):
            pair = (first << 32) + second  # with an `END` in it: never looked up
            earlier.append(latest.get(pair, 0))
            latest[pair] = at
            first, second = second, token
        self.tokens.extend(tokens)

    def end(self) -> None:
        """What comes next is another text."""
        if self.tokens:
            self.tokens.append(END)
            self._earlier.append(0)

    def best(self, tail: Sequence[int]) -> Place:
        """The place that shares most tokens with the end of `tail`; (0, …) if it has no such pair."""
        found = (0, 0, self)
        for place in self._places(_pair(tail[-2], tail[-1])):  # the latest first
            length = _common(self.tokens, place, tail)
            if length > found[0]:
                found = (length, place, self)
        return found

    def after(self, place: int, count: int) -> array[int]:
        found = self.tokens[place : place + count]
        return found[: found.index(END)] if END in found else found

    def _places(self, pair: int) -> list[int]:
        found, place = list[int](), self._latest.get(pair, 0)
        while place and len(found) < PLACES:
            found.append(place)
            place = self._earlier[place]
        if len(found) < PLACES and self._pairs:
            end = bisect_right(self._pairs, pair)
            begin = bisect_left(self._pairs, pair, max(0, end - PLACES + len(found)), end)
            found += self._order[begin:end][::-1]
        return found


def _pair(first: int, second: int) -> int:
    return (first << 32) + second


def _sorted_pairs(tokens: array[int]) -> tuple[array[int], array[int]]:
    """All pairs that something follows, sorted, and the positions that follow them; equal ones in order."""
    if len(tokens) <= GRAM:
        return array("q"), array("q")
    values = np.frombuffer(tokens, dtype=np.int32).astype(np.int64)
    pairs = (values[:-2] << 32) + values[1:-1]
    order = np.argsort(pairs, kind="stable")
    return array("q", pairs[order].tobytes()), array("q", (order + GRAM).tobytes())


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

    def extend(self, tokens: Sequence[int]) -> None:
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
        place += added
        if place >= len(corpus.tokens) or corpus.tokens[place] == END:
            return None
        return min(length + added, MATCH_MAX), place, corpus

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


class Answers:
    """The last answers of a scope in two texts: however many they are, a pair is looked up twice.

    Texts are only added to. When one is full, another is begun, and the one before it is dropped.
    """

    def __init__(self) -> None:
        self.texts = [Corpus(NONE)]  # the latest first
        self._lengths = [dict[str, int]()]  # of the answers in each text, by request
        self._begun = 0  # answers in the first text that are in no other
        self._last = ""  # request whose answer the first text ends with

    @property
    def tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)

    def add(self, request_id: str, answer: Sequence[int]) -> None:
        """Of an answer that was added before, what is new, and what it takes to find that by its tail."""
        known = next((lengths[request_id] for lengths in self._lengths if request_id in lengths), 0)
        if len(answer) <= known:
            return
        self._begun += not known
        if self._begun > ANSWERS_MAX or len(self.texts[0].tokens) >= TEXT_TOKENS_MAX:
            self.texts, self._lengths = [Corpus(NONE), self.texts[0]], [{}, self._lengths[0]]
            self._begun, self._last = int(not known), ""
        text = self.texts[0]
        if request_id == self._last:
            text.extend(answer[known:])
        else:
            text.end()
            text.extend(answer[max(0, known - MATCH_MAX) :])
        self._last, self._lengths[0][request_id] = request_id, len(answer)


class RecentAnswers:
    """The last answers of each scope, for its own requests alone. Bounded in scopes, answers and tokens."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[Scope, Answers] = OrderedDict()
        self._tokens = 0

    def add(self, scope: Scope, request_id: str, answer: Sequence[int]) -> None:
        """When the request leaves its slot: it may be preempted, and come again with a longer answer."""
        if len(answer) <= GRAM:
            return
        answers = self._scopes.setdefault(scope, Answers())
        self._scopes.move_to_end(scope)
        self._tokens -= answers.tokens
        answers.add(request_id, answer[:ANSWER_TOKENS_MAX])
        self._tokens += answers.tokens
        while len(self._scopes) > SCOPES_MAX or (len(self._scopes) > 1 and self._tokens > TOKENS_MAX):
            self._tokens -= self._scopes.popitem(last=False)[1].tokens

    def of(self, scope: Scope) -> list[Corpus]:
        """Texts with them, the latest first."""
        found = self._scopes.get(scope)
        return found.texts if found is not None else []
