"""The output thread: one for all streams of a loop, with one handoff per tick.

A stream is registered before its request is submitted, so no token can arrive too early. Slow readers do not
delay a tick: a stream only appends to its reader's queue. `after_tick` callbacks run when all deltas of a
tick are delivered, e.g. to send them together.
"""

from __future__ import annotations

import logging
import queue
import threading
from array import array
from collections.abc import Callable
from typing import Protocol

from stretto.core.tick import Events, Progress, PromptScores, Started, Terminal
from stretto.text.stream import TextDelta, TextStream

log = logging.getLogger("stretto.runtime")

__all__ = ["OutputPump", "OutputStream", "TextDelta", "TextStream"]


class OutputStream(Protocol):
    """One request's output, as text (`TextStream`) or token ids (`worker.token_stream`)."""

    broken: bool

    def start(self, started: Started) -> None: ...
    def push(self, tokens: array[int], extras: object) -> None: ...
    def score(self, scores: PromptScores) -> None: ...
    def advance(self, progress: Progress) -> None: ...
    def finish(self, terminal: Terminal) -> None: ...


class OutputPump:
    """`deliver` is called by the loop and only enqueues the tick's events."""

    def __init__(self, cancel: Callable[[str], None], name: str = "stretto-output") -> None:
        self._cancel = cancel
        self._events: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._after_tick: tuple[Callable[[], None], ...] = ()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures: int = 0

    def start(self) -> None:
        self._thread.start()

    def register(self, request_id: str, stream: OutputStream) -> None:
        self._streams[request_id] = stream

    def after_tick(self, callback: Callable[[], None]) -> None:
        """Called on this thread after all deltas of a tick are delivered. Must not raise or block."""
        self._after_tick = (*self._after_tick, callback)

    def deliver(self, events: Events) -> None:
        self._events.put(events)

    def close(self) -> None:
        """Deliver what is left, then end the thread."""
        self._events.put(None)
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while (events := self._events.get()) is not None:
            for started in events.started:
                self._start(started)
            at = 0
            for request_id, scores in events.scores.items():
                self._tell(request_id, lambda stream, found=scores: stream.score(found))  # type: ignore[misc]
            for request_id, progress in events.progress.items():
                self._tell(request_id, lambda stream, found=progress: stream.advance(found))  # type: ignore[misc]
            for request_id, count in zip(events.requests, events.counts, strict=True):
                self._push(request_id, events.tokens[at : at + count], events.extras.get(request_id))
                at += count
            for terminal in events.ends:
                self._finish(terminal)
            for callback in self._after_tick:
                callback()

    def _start(self, started: Started) -> None:
        stream = self._streams.get(started.request_id)
        if stream is not None:
            stream.start(started)

    def _push(self, request_id: str, tokens: array[int], extras: object) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        try:
            stream.push(tokens, extras)
        except Exception:
            self._break(request_id, stream)

    def _tell(self, request_id: str, what: Callable[[OutputStream], None]) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        try:
            what(stream)
        except Exception:
            self._break(request_id, stream)

    def _break(self, request_id: str, stream: OutputStream) -> None:
        """A sink that raises breaks only its own stream, whose end is still delivered."""
        log.exception("the output of a stream failed; it is cancelled", extra={"request_id": request_id})
        self.failures += 1
        stream.broken = True
        self._cancel(request_id)

    def _finish(self, terminal: Terminal) -> None:
        stream = self._streams.pop(terminal.request_id, None)
        if stream is None:
            return
        try:
            stream.finish(terminal)
        except Exception:
            self.failures += 1
