"""Incremental detokenizing. A token may end inside a character; its bytes are held until the next token.

Knows UTF-8. The caller leaves out control tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One stream. `push` takes time linear in the token and holds back at most 3 bytes."""

    __slots__ = ("_decoder", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = _UTF8("replace")

    def push(self, token: int) -> str:
        """The text completed by this token; bytes that can never be UTF-8 become U+FFFD."""
        return self._decoder.decode(self._token_bytes(token))

    def push_bytes(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Ends the stream: an incomplete character becomes U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    @property
    def held_bytes(self) -> int:
        return len(self._decoder.getstate()[0])
