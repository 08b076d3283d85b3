"""Tokens of texts that come again: a system prompt, and a conversation's earlier messages at every turn.

A bounded memory over a `Tokenizer`, exact because `encode` is a function of its text alone. Kept apart by
scope: how long an answer takes must not tell one tenant what another one sends.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Hashable

from stretto.text.bounds import KnowsBytes
from stretto.text.tokenizer import Tokenizer

TEXT_MIN = 512  # characters: shorter ones are as quickly encoded
BYTES_MAX = 32 << 20
SHARE_MAX = 4  # a text that takes more than a quarter of the memory is not kept

Key = tuple[Hashable, bool, str]


class Memory:
    """Thread-safe. The texts that were not asked for longest are forgotten first."""

    def __init__(self, tokenizer: Tokenizer, *, bytes_max: int = BYTES_MAX) -> None:
        self.tokenizer = tokenizer
        self.bytes = 0
        self._bytes_max = bytes_max
        self._known: OrderedDict[Key, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, scope: Hashable) -> RememberedTokenizer:
        return RememberedTokenizer(self, scope)

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


class RememberedTokenizer:
    """The tokenizer as one scope sees it."""

    def __init__(self, memory: Memory, scope: Hashable) -> None:
        self._memory = memory
        self._tokenizer = memory.tokenizer
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
        known = self._memory.get(key)
        if known is not None:
            return known.tolist()
        tokens = self._tokenizer.encode(text, special)
        self._memory.put(key, array("i", tokens))
        return tokens

    def tokens_at_least(self, text: str) -> int:
        return self._tokenizer.tokens_at_least(text) if isinstance(self._tokenizer, KnowsBytes) else 0

    def token_bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def is_control(self, token: int) -> bool:
        return self._tokenizer.is_control(token)


def _size(key: Key, tokens: array[int]) -> int:
    return sys.getsizeof(key[2]) + len(tokens) * tokens.itemsize
