"""A lower bound on the number of tokens of a text, without a tokenizer: texts that cannot fit are not sent.

The worker announces a bound with each model (`ModelInfo.text_bound`); the client applies it.
"""

from __future__ import annotations

from stretto.rpc.base import Message

TOKENS_MAX = 1 << 17  # of one tokenize or detokenize call; at least the model's window

_SLICE_CHARS = 1 << 16


class TextBound(Message):
    """`tokens_max`: the window. `uncounted`: bytes that may yield no token."""

    tokens_max: int
    token_bytes_max: int  # of the longest token
    uncounted: bytes = b""

    def tokens_at_least(self, text: str) -> int:
        """Never more than the tokenizer's count."""
        return -(-self._counted(text) // self.token_bytes_max)

    def exceeds(self, text: str, tokens: int) -> int:
        """A lower bound on the tokens, or 0 if the text may fit. Reads no more of it than needed."""
        size = 0
        for start in range(0, len(text), _SLICE_CHARS):
            size += self._counted(text[start : start + _SLICE_CHARS])
            if size > tokens * self.token_bytes_max:
                return -(-size // self.token_bytes_max)
        return 0

    def _counted(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        return len(data.translate(None, self.uncounted)) if self.uncounted else len(data)
