"""Cache of tokenized texts that recur: system prompts and the earlier messages of a conversation.

Bounded, and exact because `encode` depends on its text alone. Separate per scope: response times must not
reveal to one tenant what another sends.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Hashable

from stretto.text.bounds import KnowsBytes
from stretto.text.tokenizer import Tokenizer

TEXT_MIN = 512  # characters: shorter texts are as fast to encode
BYTES_MAX = 32 << 20
SHARE_MAX = 4  # a text that takes more than a quarter of the cache is not kept

Key = tuple[Hashable, bool, str]


class TokenCache:
    """Thread-safe. Evicts the least recently used texts first."""

    def __init__(self, tokenizer: Tokenizer, *, bytes_max: int = BYTES_MAX) -> None:
        self.tokenizer = tokenizer
        self.bytes = 0
        self._bytes_max = bytes_max
        self._known: OrderedDict[Key, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def for_scope(self, scope: Hashable) -> CachedTokenizer:
        return CachedTokenizer(self, scope)

    def get(self, key: Key) -> array[int] | None:
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            return known

    def put(self, key: Key, tokens: array[int]) -> None:
        size = _size(key, tokens)
        if size > self._bytes_max // SHARE_MAX:
            return
        with self._lock:
            if key in self._known:
                return
            self._known[key] = tokens
            self.bytes += size
            while self.bytes > self._bytes_max:
                self.bytes -= _size(*self._known.popitem(last=False))


class CachedTokenizer:
    """A tokenizer that uses one scope of the cache."""

    def __init__(self, cache: TokenCache, scope: Hashable) -> None:
        self._cache = cache
        self._tokenizer = cache.tokenizer
        self._scope = scope

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def bos(self) -> int | None:
        return self._tokenizer.bos

    @property
    def eos(self) -> frozenset[int]:
        return self._tokenizer.eos

    def encode(self, text: str, special: bool) -> list[int]:
        if len(text) < TEXT_MIN:
            return self._tokenizer.encode(text, special)
        key = (self._scope, special, text)
        known = self._cache.get(key)
        if known is not None:
            return known.tolist()
        tokens = self._tokenizer.encode(text, special)
        self._cache.put(key, array("i", tokens))
        return tokens

    def tokens_at_least(self, text: str) -> int:
        return self._tokenizer.tokens_at_least(text) if isinstance(self._tokenizer, KnowsBytes) else 0

    def token_bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def is_control(self, token: int) -> bool:
        return self._tokenizer.is_control(token)


def _size(key: Key, tokens: array[int]) -> int:
    return sys.getsizeof(key[2]) + len(tokens) * tokens.itemsize
