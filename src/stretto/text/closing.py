"""Shortest completion of a guided text, so that an answer is complete before `max_tokens` is reached.

Knows JSON's closing characters and a vocabulary. `Closer.path` advances a copy of a matcher to its end: it
takes forced tokens as they are, otherwise the first allowed token of a short list of closing ones. The choice
depends only on the grammar's state, so the rest of a path is the path of the next state, and a resumed
request takes the same one. This always ends JSON, and those regular expressions and Lark grammars that offer
few choices. Each step takes microseconds: a path of 30 tokens about 0.2 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLMatcher

RESERVE_TOKENS = 256  # before the limit, where every token is checked
JUMP_TOKENS = 64  # by which one token may lengthen the path to the end, beyond the shortest text
BRANCHES_MAX = 64  # words compared at one point, for instance those of an enum
ROLLOUTS_MAX = 4  # of them followed to the end when few tokens are left
SHORTEST_TOKENS_MAX = 4096  # a grammar whose shortest text is longer is not closed
LOST_MAX = 4  # states without a path to the end, after which a generation stops searching
TRIALS_MAX = 20_000  # tokens tried by one search: 25 ms at most, usually a hundredth of it
STEP_TRIALS, BRANCH_TRIALS = 20, 200  # cost of a plain choice and of a choice among words, in trials
_PROBE = b"~"  # allowed in free strings and nowhere else in JSON
_STRING_ENDS = (b'"}]}', b'"}}', b'"}]', b'"]}', b'"]', b'"}', b'"')
_CLOSERS = (b"}]}", b"]}]", b"}}}", b"}}", b"}]", b"]}", b"]]", b"}", b"]")
_MARKS = (*_CLOSERS, b'""', b'"', b", ", b",", b":")
_OTHERS = (*b"null 0 1 2 3 4 5 6 7 8 9 true false [] {} [ { -".split(), b"\x80", b"\xa0", b"\x90", b"\xbf")
_LAST = (b'"', b"}", b"]", b",")  # what may follow a value
# One of each kind: a pattern or a number often ends after one or two of them.
_POINTS = tuple(bytes((byte,)) for byte in b"@.:-/#_+=?&%()")
_SAMPLES = (*(bytes((byte,)) for byte in b"0123456789aAZDMSHYWTP "), *_POINTS)
_BODY_LENGTHS = (16, 12, 8, 6, 4, 3, 2, 1)


@dataclass(slots=True)
class _SearchBudget:
    """Trials left to one search. Counted, not timed, so that the same state gives the same path."""

    left: int = TRIALS_MAX


class Closer:
    """One vocabulary. Immutable, so thread-safe."""

    def __init__(self, tokens: Sequence[bytes], *, eos: Iterable[int], control: Iterable[int] = ()) -> None:
        hidden = {*control, *eos}
        self._eos = min(eos)
        self._tokens = tokens
        self._ids = {
            text: token for token, text in reversed(list(enumerate(tokens))) if text and token not in hidden
        }
        self._longest = max(map(len, self._ids), default=1)
        self._probe = self._known((_PROBE,))
        self._ends = self._known(_STRING_ENDS)
        self._bodies = self._known(self._letters())
        self._marks = self._known(_MARKS)
        self._others = self._known(_OTHERS)
        self._last = self._known(_LAST)
        self._quote = self._known(_LAST[:1])
        self._colon = self._known((b":",))
        self._points = self._known(_POINTS)
        self._samples = self._known(_SAMPLES)
        self._letter_samples = frozenset(self._known((b"a", b"A")))
        self._fillers = self._known((b"a", b"0"))

    def path(
        self, matcher: LLMatcher, limit: int, *, thorough: bool = False, budget: _SearchBudget | None = None
    ) -> list[int] | None:
        """Tokens that complete the text, including the end token; None if `limit` tokens are too few.

        `thorough` compares where words lead before taking one, at several times the cost.
        """
        state = matcher.deep_copy()
        budget = budget or _SearchBudget()
        taken: list[int] = []
        while len(taken) < limit and budget.left > 0:
            if state.is_accepting():
                return [*taken, self._eos]
            forced = state.compute_ff_bytes()
            piece = (
                self._tokenized(forced)
                if forced
                else self._chosen(state, limit - len(taken), thorough, budget)
            )
            if not piece or state.try_consume_tokens(piece) != len(piece):
                return None
            taken += piece
        return None

    def shortest(self, fresh: LLMatcher) -> int:
        """Length of the shortest text found, including the end token; 0 if none was found."""
        found = [
            len(path)
            for thorough in (False, True)
            if (path := self.path(fresh, SHORTEST_TOKENS_MAX, thorough=thorough)) is not None
        ]
        return min(found, default=0)

    def outlives(self, path: Sequence[int], state: LLMatcher) -> bool:
        """Whether this path is still valid after a token: yes if the token only lengthened a string."""
        kept = len(path) - 1
        return (
            path[0] in self._ends
            and bool(self._first(state, self._probe))
            and state.validate_tokens(list(path[:kept])) == kept
        )

    def _chosen(self, state: LLMatcher, limit: int, thorough: bool, budget: _SearchBudget) -> list[int]:
        budget.left -= STEP_TRIALS
        if self._first(state, self._probe):
            return (
                self._first(state, self._ends)
                or self._second_last(state, self._quote, budget)
                or self._first(state, self._bodies)
            )
        return (
            self._first(state, self._marks)
            or self._second_last(state, self._last, budget)
            or self._first(state, self._points)
            or self._first(state, self._others)
            or self._branch(state, limit, thorough, budget)
        )

    def _second_last(self, state: LLMatcher, lasts: Sequence[int], budget: _SearchBudget) -> list[int]:
        """A character after which the value may end, or one that is two characters away from that."""
        valid = [token for token in self._samples if state.validate_tokens([token]) == 1]
        if any(token in self._letter_samples for token in valid):
            lasts = self._quote  # numbers have no letters
        budget.left -= len(self._samples) + 3 * len(valid) * len(lasts)
        for between in ((), *((token,) for token in self._fillers)):
            for token in valid:
                for last in lasts:
                    tried = [token, *between, last, *self._colon]  # a key's quote is followed by a colon
                    if state.validate_tokens(tried) == len(tried) - len(self._colon):
                        return [token]
        return []

    @staticmethod
    def _first(state: LLMatcher, tokens: Sequence[int]) -> list[int]:
        return next(([token] for token in tokens if state.validate_tokens([token]) == 1), [])

    def _branch(self, state: LLMatcher, limit: int, thorough: bool, budget: _SearchBudget) -> list[int]:
        """The word with the shortest forced rest; punctuation before letters."""
        scored: list[tuple[bool, int, int]] = []
        words: dict[bytes, tuple[bool, int, int]] = {}  # the longest prefix of each word
        for token in self._allowed(state):
            ahead = state.deep_copy()
            ahead.try_consume_tokens([token])
            text, forced = self._tokens[token], ahead.compute_ff_bytes()
            scored.append((text.isalnum() and not ahead.is_accepting(), len(forced), token))
            words[text + forced] = min(scored[-1], words.get(text + forced, scored[-1]))
        budget.left -= BRANCH_TRIALS
        if not thorough or len(words) < 2:
            return [min(scored)[2]] if scored else []
        return self._rolled_out(state, sorted(words.values())[:ROLLOUTS_MAX], limit, budget)

    def _rolled_out(
        self, state: LLMatcher, scored: list[tuple[bool, int, int]], limit: int, budget: _SearchBudget
    ) -> list[int]:
        best: list[int] = []
        for _, _, token in scored:
            ahead = state.deep_copy()
            ahead.try_consume_tokens([token])
            found = self.path(ahead, limit - 1, budget=budget)
            if found is not None and len(found) < limit:
                best, limit = [token], len(found)
        return best or [scored[0][2]]

    def _allowed(self, state: LLMatcher) -> list[int]:
        """A few tokens that may come next; short ones if there are many."""
        bits = np.frombuffer(state.deep_copy().compute_bitmask(), dtype=np.uint8)
        found = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
        known = [token for token in found if token < len(self._tokens) and self._tokens[token] in self._ids]
        return sorted(known, key=lambda token: (len(self._tokens[token]), token))[:BRANCHES_MAX]

    def _tokenized(self, text: bytes) -> list[int]:
        """Forced bytes as tokens, longest match first. Greedy, so any suffix of the result is stable."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            length = min(self._longest, len(text) - at)
            while length and text[at : at + length] not in self._ids:
                length -= 1
            if not length:
                break  # no token has these bytes: keep what was found before them
            ids.append(self._ids[text[at : at + length]])
            at += length
        return ids

    def _known(self, texts: Iterable[bytes]) -> tuple[int, ...]:
        return tuple(self._ids[text] for text in texts if text in self._ids)

    def _letters(self) -> list[bytes]:
        """One word of each length, for strings that must not be short."""
        found: dict[int, bytes] = {}
        for text, token in self._ids.items():
            if len(text) in _BODY_LENGTHS and text.isalpha() and text.isascii():
                known = found.get(len(text))
                if known is None or token < self._ids[known]:
                    found[len(text)] = text
        return [found[length] for length in _BODY_LENGTHS if length in found]


class Ending:
    """Keeps one generation within its limit: a token after which the text could no longer end is replaced."""

    def __init__(self, closer: Closer, shortest: int, tokens_max: int) -> None:
        """`shortest`: length of the shortest text (`Closer.shortest`), found when the grammar compiled."""
        self._closer = closer
        self._path: list[int] | None = None  # from the current state
        self._next: tuple[int, list[int] | None] = (-1, None)  # a token and the path after it
        self._lost = 0  # states from which no path to the end was found
        # If not even the shortest text fits, there is nothing to steer to.
        self._reserve = RESERVE_TOKENS + 2 * shortest if 0 < shortest <= tokens_max else 0
        self._jump = JUMP_TOKENS + shortest

    def steer(self, state: LLMatcher, token: int, left: int) -> int:
        """The token, or a replacement if the text could not end within `left` tokens after it."""
        if left >= self._reserve or self._lost >= LOST_MAX:
            return token
        ahead = state.deep_copy()
        ahead.try_consume_tokens([token])
        path = self._carried(token, ahead) or self._closer.path(ahead, left)
        if path is not None and len(path) <= left:
            self._next = (token, path)
            return token
        closer = self._closer
        own = closer.path(state, left + 1) or closer.path(state, left + 1, thorough=True)
        if own is None:
            self._lost += 1
            return token
        self._next = (own[0], own[1:] or None)
        return own[0]

    def is_near(self, state: LLMatcher, left: int) -> bool:
        """Whether each token must be checked from here on, for samplers that run elsewhere."""
        if left >= self._reserve:
            return False
        self._path = self._path or self._closer.path(state, left + 1)
        return self._path is None or left < len(self._path) + self._jump

    def _carried(self, token: int, ahead: LLMatcher) -> list[int] | None:
        if not self._path:
            return None
        if self._path[0] == token:
            return self._path[1:] or None
        return self._path if self._closer.outlives(self._path, ahead) else None

    def advance(self, token: int) -> None:
        self._path = self._next[1] if self._next[0] == token else None

    def restart(self) -> None:
        self._path = None
        self._next = (-1, None)
