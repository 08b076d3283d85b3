"""How few tokens a text can become, known without its vocabulary: a text that cannot fit is not sent at all.

The runtime announces a bound with each model (`ModelInfo.text_bound`); the engine applies it.
"""

from __future__ import annotations

from stretto.rpc.base import Message

TOKENS_MAX = 1 << 17  # of one tokenize or detokenize, or the model's window where that is larger

_SLICE_CHARS = 1 << 16


class TextBound(Message):
    """`tokens_max`: the window. `uncounted`: bytes that may become no token."""

    tokens_max: int
    token_bytes_max: int  # of the longest token
    uncounted: bytes = b""

    def tokens_at_least(self, text: str) -> int:
        """Never more than the tokenizer makes of the text."""
        return -(-self._counted(text) // self.token_bytes_max)

    def exceeds(self, text: str, tokens: int) -> int:
        """At least so many tokens, or 0 where the text may fit. Looks at no more of it than it needs."""
        size = 0
        for start in range(0, len(text), _SLICE_CHARS):
            size += self._counted(text[start : start + _SLICE_CHARS])
            if size > tokens * self.token_bytes_max:
                return -(-size // self.token_bytes_max)
        return 0

    def _counted(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        return len(data.translate(None, self.uncounted)) if self.uncounted else len(data)
