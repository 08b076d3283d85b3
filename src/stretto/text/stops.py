"""Stop strings over streamed text.

Counts characters and the tokens they came from. Holds back only text that may still become a stop string, so
that nothing after a stop is ever shown, and reports how many tokens to keep. O(1) per character: an
Aho-Corasick automaton, built once per request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.errors import InvalidStopError

STOPS_MAX = 16
STOP_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class Stopped:
    """`emit` is safe to show. `stop` is the string that ended the text; then `tokens_kept` counts the tokens
    with at least one character before it, and `chars_shown` the characters shown in total."""

    emit: str
    stop: str | None = None
    tokens_kept: int = 0
    chars_shown: int = 0


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings of a request, within their limits."""
    if len(stops) > STOPS_MAX:
        raise InvalidStopError(f"there are {len(stops)} stop strings")
    for stop in stops:
        if not 1 <= len(stop) <= STOP_CHARS_MAX:
            raise InvalidStopError(f"a stop string has {len(stop)} characters")
    return tuple(dict.fromkeys(stops))


class StopMatcher:
    """One stream. The first stop string to be complete wins; of several at once, the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = check_stops(stops)
        self._goto: list[dict[str, int]] = [{}]
        self._fail: list[int] = [0]
        self._depth: list[int] = [0]
        self._match: list[str | None] = [None]
        self._build()
        self._firsts = frozenset(self._goto[0])
        self._state = 0
        self._held = ""
        self._shown = 0  # characters emitted so far
        self._seen = 0  # characters received so far
        self._tokens = 0  # tokens whose text is shown in full
        self._waiting: deque[tuple[int, int]] = deque()  # (start, end) of tokens not yet shown in full
        self._done = False

    def _build(self) -> None:
        for stop in self._stops:
            state = 0
            for character in stop:
                state = self._goto[state].setdefault(character, len(self._goto))
                if state == len(self._fail):
                    self._goto.append({})
                    self._fail.append(0)
                    self._depth.append(0)
                    self._match.append(None)
            self._match[state] = stop
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for character, child in self._goto[state].items():
                self._depth[child] = self._depth[state] + 1
                self._fail[child] = self._step(self._fail[state], character) if state else 0
                if self._match[child] is None:
                    self._match[child] = self._match[self._fail[child]]
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._goto[state]:
            state = self._fail[state]
        return self._goto[state].get(character, 0)

    def push(self, text: str) -> Stopped:
        """The text of one more token (possibly none)."""
        if self._done:
            return Stopped("")
        start, self._seen = self._seen, self._seen + len(text)
        self._waiting.append((start, self._seen))
        if self._state == 0 and self._firsts.isdisjoint(text):
            return self._emit(text)
        for index, character in enumerate(text):
            self._state = self._step(self._state, character)
            stop = self._match[self._state]
            if stop is not None:
                return self._stop(self._held + text[: index + 1], stop)
        whole = self._held + text
        keep = self._depth[self._state]
        self._held = whole[len(whole) - keep :]
        return self._emit(whole[: len(whole) - keep])

    def flush(self) -> str:
        """Ends the text: returns what was held back for a stop string that did not come."""
        held, self._held, self._state, self._done = self._held, "", 0, True
        return held

    @property
    def held_chars(self) -> int:
        return len(self._held)

    def _emit(self, text: str) -> Stopped:
        self._shown += len(text)
        # A token without text counts with the next character.
        while self._waiting and self._waiting[0][0] < self._shown >= self._waiting[0][1]:
            self._waiting.popleft()
            self._tokens += 1
        return Stopped(text)

    def _stop(self, whole: str, stop: str) -> Stopped:
        emit = whole[: len(whole) - len(stop)]
        self._shown += len(emit)
        kept = self._tokens + sum(1 for begin, _ in self._waiting if begin < self._shown)
        self._held, self._state, self._done = "", 0, True
        return Stopped(emit, stop, kept, self._shown)
