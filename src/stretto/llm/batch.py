"""Many requests at once: submitted a window at a time, collected on the output thread, woken once per end.

With `detokenize=False` a request's output is its token ids: no text is made of them.
"""

from __future__ import annotations

import queue
from array import array
from collections.abc import Callable, Sequence

from stretto.core.tick import Progress, PromptScores, Started, Terminal
from stretto.errors import InvalidRequestError
from stretto.llm.progress import ProgressBar
from stretto.llm.results import Completion, assemble
from stretto.llm.runtime import Runtime
from stretto.worker.model import PreparedRequest
from stretto.worker.output import TextDelta

Done = Callable[[int], None]


class IdCollector:
    """An output stream that keeps token ids and what was measured with them."""

    light = True
    place = None

    def __init__(self, index: int, deltas: list[TextDelta], done: Done) -> None:
        self._index = index
        self._deltas = deltas
        self._done = done
        self._tokens = array("i")
        self._extras: list[object] = []
        self.broken = False

    def start(self, started: Started) -> None: ...

    def push(self, tokens: array[int], extras: object) -> None:
        self._tokens.extend(tokens)
        if extras is not None:
            self._extras.append(extras)

    def score(self, scores: PromptScores) -> None: ...

    def advance(self, progress: Progress) -> None: ...

    def finish(self, terminal: Terminal) -> None:
        self._deltas += [TextDelta(extras=extras) for extras in self._extras]
        self._deltas.append(TextDelta(tokens=tuple(self._tokens), end=terminal))
        self._done(self._index)


def run_calls(
    runtime: Runtime,
    calls: Sequence[PreparedRequest],
    progress: ProgressBar,
    *,
    window: int,
    detokenize: bool = True,
) -> list[Completion]:
    """Submit calls in order, at most `window` at a time; returns when each has ended."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    deltas: list[list[TextDelta]] = [[] for _ in calls]
    running: dict[int, str] = {}
    waiting = iter(enumerate(calls))
    left = len(calls)
    try:
        while left:
            while len(running) < window and (following := next(waiting, None)) is not None:
                index, call = following
                if detokenize:
                    running[index] = runtime.start(call, _collecting(index, deltas[index], ended.put))
                else:
                    running[index] = runtime.submit(call, IdCollector(index, deltas[index], ended.put))
            index = ended.get()
            running.pop(index, None)
            left -= 1
            progress.tokens(sum(len(delta.tokens) for delta in deltas[index]))
            progress.done()
    except BaseException:
        for request_id in running.values():
            runtime.cancel(request_id)
        raise
    return [assemble(parts, index) for index, parts in enumerate(deltas)]


def check_ids_only(call: PreparedRequest) -> None:
    if call.stops:
        raise InvalidRequestError(
            "stop strings need text", hint="omit stop, or use stop_token_ids with detokenize=False"
        )


def _collecting(index: int, deltas: list[TextDelta], done: Done) -> Callable[[TextDelta], None]:
    def take(delta: TextDelta) -> None:
        deltas.append(delta)
        if delta.end is not None:
            done(index)

    return take
