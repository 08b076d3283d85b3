"""Rejects texts that cannot fit the context window before tokenizing them, which can take seconds.

Two steps. The first is exact: a token covers at most `token_bytes_max` bytes, so a text with more bytes than
the window can hold is rejected at once. The second estimates: texts of more than eight characters per token
of the window are tokenized in slices until the count exceeds the window by a quarter, more than slicing can
add. All other texts are tokenized whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from stretto.errors import PromptTooLongError
from stretto.rpc.text_bound import TextBound
from stretto.text.provenance import Segment
from stretto.text.tokenizer import Tokenizer

CHARS_A_TOKEN = 8  # twice the usual: shorter texts are not checked before tokenizing
SLICE_CHARS = 1 << 14
MARGIN = 1.25
MARGIN_TOKENS = 64


@runtime_checkable
class KnowsBytes(Protocol):
    """A tokenizer with a lower bound on the number of tokens of a text."""

    def tokens_at_least(self, text: str) -> int:
        """A lower bound on `len(encode(text))`, computed without encoding."""


@runtime_checkable
class HasByteBound(Protocol):
    """A tokenizer with an upper bound on the bytes of one token."""

    @property
    def byte_bound(self) -> tuple[int, bytes]:
        """Bytes of the longest token (0: no bound), and the bytes that may be dropped."""


def text_bound(tokenizer: Tokenizer, window: int) -> TextBound | None:
    """The bound that lets another process reject a text. The first call reads the whole vocabulary."""
    longest, uncounted = tokenizer.byte_bound if isinstance(tokenizer, HasByteBound) else (0, b"")
    return TextBound(tokens_max=window, token_bytes_max=longest, uncounted=uncounted) if longest else None


def check_text(text: str, tokenizer: Tokenizer, window: int) -> None:
    """Raises if a text has at least `window` tokens by its bytes alone. Exact, takes milliseconds."""
    if len(text) < window or not isinstance(tokenizer, KnowsBytes):
        return
    count = tokenizer.tokens_at_least(text)
    if count >= window:
        raise PromptTooLongError.of(count, window, at_least=True)


def check_segments(segments: Iterable[Segment], tokenizer: Tokenizer, window: int) -> None:
    """Raises if the user text is clearly too long. Costs about as much as tokenizing one full window."""
    texts = [segment.text for segment in segments if segment.user]
    if sum(map(len, texts)) <= CHARS_A_TOKEN * window:
        return
    count = 0
    for text in texts:
        for start in range(0, len(text), SLICE_CHARS):
            count += len(tokenizer.encode(text[start : start + SLICE_CHARS], False))
            if count > window * MARGIN + MARGIN_TOKENS:
                raise PromptTooLongError.of(window, window, at_least=True)
