"""Turns embedding and reranking inputs into token sequences: validates, adds special tokens, truncates on
request.

Text is wrapped as in training ([CLS] … [SEP]); token ids are used unchanged. Every rejection is a typed error
with the numbers involved. User text never becomes a control token. Runs no model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import EmptyPromptError, InvalidRequestError, InvalidTokenError, PromptTooLongError
from stretto.text import bounds
from stretto.text.provenance import Segment
from stretto.text.templates import Rendered
from stretto.text.tokenizer import Tokenizer, encode_prompt

INPUTS_MAX = 2048
TRUNCATE = ("", "left", "right")
_PLACES = re.compile(r"(\{query\}|\{document\})")


@dataclass(frozen=True, slots=True)
class Frame:
    """Special tokens around a text, and between a query and a document."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    rerank_template: str = ""  # the file's template with {query} and {document}, instead of special tokens


class InputReader:
    def __init__(
        self, tokenizer: Tokenizer, frame: Frame, *, window: int, inputs_max: int = INPUTS_MAX
    ) -> None:
        self._tokenizer = tokenizer
        self._frame = frame
        self._window = window
        self._inputs_max = inputs_max

    @property
    def window(self) -> int:
        return self._window

    def texts(self, inputs: Sequence[Any], truncate: str) -> list[list[int]]:
        """Inputs to embed: texts or lists of token ids, type-checked because the SDK accepts any object."""
        self._check(len(inputs), "inputs", truncate)
        return [self._one(number, given, truncate) for number, given in enumerate(inputs)]

    def pairs(self, query: Any, documents: Sequence[Any], truncate: str) -> list[list[int]]:
        """The query paired with each document. Of a pair that is too long, the document is truncated."""
        self._check(len(documents), "documents", truncate)
        if not isinstance(query, str) or not query:
            raise EmptyPromptError("the query is empty", hint="send a text")
        for number, document in enumerate(documents):
            if not isinstance(document, str) or not document:
                raise EmptyPromptError(f"document {number} is empty", hint="send texts")
        if self._frame.rerank_template:
            return [self._rendered(number, query, text, truncate) for number, text in enumerate(documents)]
        start = [*self._frame.before, *self._encoded(query, "the query", ""), *self._frame.between]
        return [
            self._framed(
                start, self._encoded(text, f"document {number}", truncate), f"document {number}", truncate
            )
            for number, text in enumerate(documents)
        ]

    def _encoded(self, text: str, what: str, truncate: str) -> list[int]:
        """The tokens of a text; of a very long one, only as many as the window needs."""
        if len(text) <= bounds.CHARS_A_TOKEN * self._window:
            return self._tokenizer.encode(text, False)
        if truncate:
            return self._tokenizer.encode(self._part(text, truncate), False)
        try:
            bounds.check_text(text, self._tokenizer, self._window + 1)
            bounds.check_segments((Segment(text, user=True),), self._tokenizer, self._window)
        except PromptTooLongError:
            raise PromptTooLongError(
                f"{what} has more than {self._window} tokens, the model's maximum",
                hint="shorten it, or set truncate: left or right",
            ) from None
        return self._tokenizer.encode(text, False)

    def _part(self, text: str, truncate: str) -> str:
        """One end of a long text, cut at a space: two windows long, so that the window is unaffected."""
        chars = bounds.CHARS_A_TOKEN * self._window
        while chars < len(text):
            part = text[:chars] if truncate == "right" else text[-chars:]
            space = part.rfind(" ") if truncate == "right" else part.find(" ")
            if space > 0:
                part = part[:space] if truncate == "right" else part[space:]
            if len(self._tokenizer.encode(part, False)) >= 2 * self._window:
                return part
            chars *= 4
        return text

    def _check(self, count: int, what: str, truncate: str) -> None:
        if count == 0:
            raise EmptyPromptError(f"no {what} given", hint="send at least one")
        if count > self._inputs_max:
            raise InvalidRequestError(
                f"{count} {what} in one request; the maximum is {self._inputs_max}",
                hint="send them in several requests",
            )
        if truncate not in TRUNCATE:
            raise InvalidRequestError(f"truncate must be left or right, not {truncate[:20]!r}", hint="")

    def _one(self, number: int, given: Any, truncate: str) -> list[int]:
        if isinstance(given, str):
            if not given:
                raise EmptyPromptError(f"input {number} is an empty string", hint="omit it")
            tokens = self._encoded(given, f"input {number}", truncate)
            return self._framed(list(self._frame.before), tokens, f"input {number}", truncate)
        if not isinstance(given, Sequence) or isinstance(given, bytes):
            raise InvalidRequestError(f"input {number} must be a text or a list of token ids", hint="")
        tokens = [self._checked(number, token) for token in given]
        return self._cut([], tokens, (), f"input {number}", truncate)

    def _checked(self, number: int, token: Any) -> int:
        size = self._tokenizer.vocab_size
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
            raise InvalidTokenError(
                f"input {number} contains token {str(token)[:24]}; valid tokens are 0 to {size - 1}"
            )
        return token

    def _framed(self, start: list[int], tokens: list[int], what: str, truncate: str) -> list[int]:
        return self._cut(start, tokens, self._frame.after, what, truncate)

    def _cut(
        self, start: list[int], tokens: list[int], end: tuple[int, ...], what: str, truncate: str
    ) -> list[int]:
        """`start + tokens + end`, with `tokens` truncated to fit where allowed."""
        total, room = len(start) + len(tokens) + len(end), self._window - len(start) - len(end)
        if total == 0:
            raise EmptyPromptError(f"{what} is empty")
        if total > self._window:
            if not truncate or room < 1:
                raise PromptTooLongError(
                    f"{what} has {total} tokens, the model's maximum is {self._window}",
                    hint="shorten it" if truncate else "shorten it, or set truncate: left or right",
                )
            tokens = tokens[:room] if truncate == "right" else tokens[-room:]
        return [*start, *tokens, *end]

    def _rendered(self, number: int, query: str, document: str, truncate: str) -> list[int]:
        """Render the file's template; if too long, shorten the document by the excess tokens."""
        self._encoded(query, "the query", "")
        text = document
        if len(text) > bounds.CHARS_A_TOKEN * self._window:
            text = self._part(text, truncate) if truncate else text
            self._encoded(text, f"document {number}", truncate)
        for _ in range(4):
            tokens = self._template_tokens(query, text)
            excess = len(tokens) - self._window
            if excess <= 0:
                return tokens
            kept = self._tokenizer.encode(text, False)
            kept = kept[: len(kept) - excess] if truncate == "right" else kept[excess:]
            if not truncate or len(kept) < 1:
                break
            text = b"".join(map(self._tokenizer.token_bytes, kept)).decode("utf-8", "ignore")
        raise PromptTooLongError(
            f"document {number} and the query have {len(tokens)} tokens, the maximum is {self._window}",
            hint="shorten it" if truncate else "shorten it, or set truncate: left or right",
        )

    def _template_tokens(self, query: str, document: str) -> list[int]:
        texts = {"{query}": query, "{document}": document}
        parts = [part for part in _PLACES.split(self._frame.rerank_template) if part]
        segments = tuple(Segment(texts.get(part, part), user=part in texts) for part in parts)
        return list(encode_prompt(Rendered(segments), self._tokenizer).tokens)
