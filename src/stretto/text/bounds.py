"""Whether a text can fit a window, told before it is tokenized: tokenizing a long text takes seconds.

Two steps. A token stands for at most so many bytes (`token_bytes_max`), so a text of more bytes than the
window can hold is refused at once; that is exact. Between that and eight characters a token, tokens of slices
are counted until they exceed the window by a quarter, which slicing cannot explain. What remains is tokenized
whole, as always.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from stretto.errors import PromptTooLongError
from stretto.rpc.text_bound import TextBound
from stretto.text.provenance import Segment
from stretto.text.tokenizer import Tokenizer

CHARS_A_TOKEN = 8  # twice the usual: below this a text is tokenized without a look
SLICE_CHARS = 1 << 14
MARGIN = 1.25
MARGIN_TOKENS = 64


@runtime_checkable
class KnowsBytes(Protocol):
    """A tokenizer that can say how few tokens a text becomes."""

    def tokens_at_least(self, text: str) -> int:
        """Never more than what `encode` answers, and without encoding."""


@runtime_checkable
class HasByteBound(Protocol):
    """A tokenizer whose tokens are bounded in bytes."""

    @property
    def byte_bound(self) -> tuple[int, bytes]:
        """Bytes of the longest token (0: no bound), and the bytes that may become no token."""


def text_bound(tokenizer: Tokenizer, window: int) -> TextBound | None:
    """What another process needs to refuse a text. Reads the whole vocabulary the first time."""
    longest, uncounted = tokenizer.byte_bound if isinstance(tokenizer, HasByteBound) else (0, b"")
    return TextBound(tokens_max=window, token_bytes_max=longest, uncounted=uncounted) if longest else None


def check_text(text: str, tokenizer: Tokenizer, window: int) -> None:
    """Raises where a text cannot become fewer than `window` tokens. Exact, and takes milliseconds."""
    if len(text) < window or not isinstance(tokenizer, KnowsBytes):
        return
    count = tokenizer.tokens_at_least(text)
    if count >= window:
        raise too_long(count, window)


def check_segments(segments: Iterable[Segment], tokenizer: Tokenizer, window: int) -> None:
    """Raises where the callers' texts are clearly too long. Costs as much as tokenizing one full window."""
    texts = [segment.text for segment in segments if segment.user]
    if sum(map(len, texts)) <= CHARS_A_TOKEN * window:
        return
    count = 0
    for text in texts:
        for start in range(0, len(text), SLICE_CHARS):
            count += len(tokenizer.encode(text[start : start + SLICE_CHARS], False))
            if count > window * MARGIN + MARGIN_TOKENS:
                raise too_long(window, window)


def too_long(count: int, window: int) -> PromptTooLongError:
    return PromptTooLongError(f"the prompt has at least {count} tokens, the context window holds {window}")
