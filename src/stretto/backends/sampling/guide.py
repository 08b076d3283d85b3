"""What a sampler asks of a grammar, and the adapter over `stretto.text.grammar.GrammarMatcher`.

A guide is state: which tokens may come next. It belongs to one sampler, which rebuilds it from the tokens
generated so far. The grammar's errors (too costly at this point) pass through to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]


class Guide(Protocol):
    """Which tokens may come next in one generation."""

    @property
    def finished(self) -> bool:
        """Nothing can follow but the end."""

    def allows(self, token: int) -> bool:
        """One token; cheap."""

    def mask(self, out: Bits) -> None:
        """One bit for each token, least significant first, into zeroed bytes."""

    def limit(self, tokens_max: int) -> None:
        """The whole text has this many tokens at most, its end among them."""

    def steer(self, token: int, left: int) -> int:
        """An allowed token, or in its place one that leads to the end within the `left` that may follow."""

    def accept(self, token: int) -> None:
        """Takes a token that was allowed. An end-of-text token changes nothing."""

    def rebuild(self, tokens: Iterable[int]) -> None:
        """Back to the beginning, then these tokens."""


class Matcher(Protocol):
    """The part of `GrammarMatcher` that the adapter needs."""

    mask_bytes: int

    @property
    def is_finished(self) -> bool: ...
    def allowed(self, token: int) -> bool: ...
    def mask(self, into: Bits) -> None: ...
    def limit(self, tokens_max: int) -> None: ...
    def steer(self, token: int, left: int) -> int: ...
    def advance(self, token: int) -> None: ...
    def rebuild(self, tokens: Iterable[int]) -> None: ...


class MatcherGuide:
    """A grammar matcher as a guide. Its vocabulary may be shorter than the row of logits (padding)."""

    __slots__ = ("_matcher", "_tokens_max")

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._tokens_max = matcher.mask_bytes * 8

    @property
    def finished(self) -> bool:
        return self._matcher.is_finished

    def allows(self, token: int) -> bool:
        return token < self._tokens_max and self._matcher.allowed(token)

    def mask(self, out: Bits) -> None:
        self._matcher.mask(out)

    def limit(self, tokens_max: int) -> None:
        self._matcher.limit(tokens_max)

    def steer(self, token: int, left: int) -> int:
        return self._matcher.steer(token, left)

    def accept(self, token: int) -> None:
        self._matcher.advance(token)

    def rebuild(self, tokens: Iterable[int]) -> None:
        self._matcher.rebuild(tokens)
