"""Splits reasoning (`<think>…</think>`) from the answer in streamed text.

The model may write the opening tag, or its template may end the prompt with it. Only text at the start is
reasoning: a tag later in the answer is part of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Tags:
    open: str = "<think>"
    close: str = "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    reasoning: str = ""
    content: str = ""


class _SplitterState(Enum):
    START = "start"  # only spaces so far: reasoning may still begin
    REASONING = "reasoning"
    BETWEEN = "between"  # the spaces after the closing tag
    CONTENT = "content"


THINK = Tags()
SPACES_HELD_MAX = 64  # bound on the text held back for a tag


def tags_for(template: str) -> Tags | None:
    """The tags in a chat template, None if the model does not reason."""
    for tags in (THINK, Tags("[THINK]", "[/THINK]"), Tags("<|START_THINKING|>", "<|END_THINKING|>")):
        if tags.close in template or tags.open in template:
            return tags
    return None


def opened_by_prompt(tail: str, tags: Tags = THINK) -> bool:
    """Whether the end of the prompt (`Rendered.tail`) leaves the reasoning open."""
    return tail.rfind(tags.open) > tail.rfind(tags.close)


def held_suffix(text: str, tag: str) -> int:
    """Number of characters at the end of `text` that may be the start of `tag`."""
    if tag[0] not in text[1 - len(tag) :]:
        return 0
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0


class ReasoningSplitter:
    """One stream. Newlines next to the tags belong to neither side."""

    def __init__(self, tags: Tags = THINK, *, opened: bool = False) -> None:
        self._tags = tags
        self._state = _SplitterState.REASONING if opened else _SplitterState.START
        self._fresh = opened  # at the very beginning of the reasoning: its first newlines are dropped
        self._held = ""

    @property
    def in_reasoning(self) -> bool:
        return self._state is _SplitterState.REASONING

    def push(self, text: str) -> Split:
        if self._state is _SplitterState.CONTENT:
            return Split(content=text)
        text, self._held = self._held + text, ""
        if self._state is _SplitterState.START:
            text = self._start(text)
        reasoning = ""
        if self._state is _SplitterState.REASONING:
            reasoning, text = self._reason(text)
        if self._state is _SplitterState.BETWEEN:
            text = text.lstrip()
            if text:
                self._state = _SplitterState.CONTENT
        if self._state is _SplitterState.CONTENT:
            return Split(reasoning, text)
        return Split(reasoning)

    def flush(self) -> Split:
        """Ends the stream: returns the text held back for a tag that did not come."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self._state is _SplitterState.REASONING else Split(content=held)

    def _start(self, text: str) -> str:
        """Decides whether reasoning begins; returns the text after the opening tag, or all of it."""
        bare = text.lstrip()
        if bare.startswith(self._tags.open):
            self._state, self._fresh = _SplitterState.REASONING, True
            return bare[len(self._tags.open) :]
        if self._tags.open.startswith(bare) and len(text) - len(bare) <= SPACES_HELD_MAX:
            self._held = text
            return ""
        self._state = _SplitterState.CONTENT
        return text

    def _reason(self, text: str) -> tuple[str, str]:
        """(reasoning, rest): the rest is the text after the closing tag, empty until that tag."""
        if self._fresh:
            text = text.lstrip("\r\n")
            self._fresh = not text
        found = text.find(self._tags.close)
        if found >= 0:
            self._state = _SplitterState.BETWEEN
            return text[:found].rstrip("\r\n"), text[found + len(self._tags.close) :]
        held = self._hold(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], ""

    def _hold(self, text: str) -> int:
        """Length of a possible tag and of the newlines before it, which belong to the tag."""
        held = held_suffix(text, self._tags.close)
        head = text[: len(text) - held]
        return held + min(len(head) - len(head.rstrip("\r\n")), SPACES_HELD_MAX)
