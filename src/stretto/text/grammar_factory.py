"""Cache of one model's compiled grammars: the most recent ones and those in use.

Bounds their number and memory; `text.grammar` knows llguidance. Try a grammar in another process first
(`worker.grammars`): hostile input can crash the process that compiles it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from stretto.text.closing import Closer
from stretto.text.grammar import GrammarMatcher, compiled

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHE_MAX = 256
CACHE_BYTES_MAX = 256 << 20


class Compiled:
    """A compiled grammar and its approximate memory. Held by the requests that use it."""

    __slots__ = ("__weakref__", "bytes", "fresh", "shortest")

    def __init__(self, fresh: LLMatcher, size: int, shortest: int = 0) -> None:
        self.fresh = fresh
        self.bytes = size
        self.shortest = shortest  # length in tokens of its shortest text


class GrammarFactory:
    """Compiles grammars for one model and caches the most recent ones. Thread-safe.

    Bounded by count and by memory. A grammar that a request holds (returned by `compile`) stays cached, so
    that nothing is compiled during a tick.
    """

    def __init__(self, tokenizer: LLTokenizer, *, eos: Iterable[int] | None = None) -> None:
        self._tokenizer = tokenizer
        self.eos = frozenset(tokenizer.eos_tokens if eos is None else eos)
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Compiled] = OrderedDict()
        self._held: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        self._bytes = 0
        tokens = [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
        hidden = [token for token in range(len(tokens)) if tokenizer.is_special_token(token)]
        self._closer = Closer(tokens, eos=self.eos, control=hidden)
        self.mask_bytes = (tokenizer.vocab_size + 7) // 8

    def compile(self, grammar: str, *, anew: bool = False, size: int = 0) -> Compiled:
        """Compiles and caches a grammar, so that `matcher` is fast. Raises a typed error.

        `anew`: compile even if cached, so that timing reveals nothing about other callers. `size`: its
        measured memory in bytes.
        """
        found = None if anew else self._find(grammar)
        if found is None:
            fresh = compiled(self._tokenizer, grammar)
            found = Compiled(fresh, max(size, len(grammar)), self._closer.shortest(fresh))
            self._keep(grammar, found)
        return found

    def matcher(self, grammar: str, tokens: Iterable[int] = ()) -> GrammarMatcher:
        known = self.compile(grammar)
        matcher = GrammarMatcher(known.fresh, self.eos, self.mask_bytes, self._closer, known.shortest)
        matcher.rebuild(tokens)
        return matcher

    def _find(self, grammar: str) -> Compiled | None:
        with self._lock:
            found = self._cache.get(grammar)
            if found is None:
                return self._held.get(grammar)
            self._cache.move_to_end(grammar)
            return found

    def _keep(self, grammar: str, made: Compiled) -> None:
        with self._lock:
            if (before := self._cache.pop(grammar, None)) is not None:
                self._bytes -= before.bytes
            self._cache[grammar] = self._held[grammar] = made
            self._bytes += made.bytes
            while len(self._cache) > CACHE_MAX or (self._bytes > CACHE_BYTES_MAX and len(self._cache) > 1):
                self._bytes -= self._cache.popitem(last=False)[1].bytes
