"""The output thread: one for all streams of a loop, with one handoff per tick.

A stream is registered before its request is submitted, so no token can arrive too early. Slow readers do not
delay a tick: a stream only appends to its reader's queue. `after_tick` callbacks run when all deltas of a
tick are delivered, e.g. to send them together.

Token ids are delivered on the loop's own thread where they are rows of columns (`tick_rows`), or of a few
streams: that takes less time than two threads need to hand the interpreter's lock back and forth.
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
from stretto.worker.tick_rows import Place, TickRows

log = logging.getLogger("stretto.runtime")

AT_ONCE_MAX = 16  # streams whose output the loop's thread delivers itself

__all__ = ["OutputPump", "OutputStream", "TextDelta", "TextStream"]


class OutputStream(Protocol):
    """One request's output, as text (`TextStream`) or token ids (`worker.token_stream`)."""

    broken: bool
    light: bool
    """Whether its calls do no more than append: the loop's thread may make them."""

    @property
    def place(self) -> Place | None:
        """Where its tokens go, if nothing else is to be done with them."""

    def start(self, started: Started) -> None: ...
    def push(self, tokens: array[int], extras: object) -> None: ...
    def score(self, scores: PromptScores) -> None: ...
    def advance(self, progress: Progress) -> None: ...
    def finish(self, terminal: Terminal) -> None: ...


class OutputPump:
    """`deliver` is called by the loop: it enqueues a tick's events, or delivers them where that is quick."""

    def __init__(self, cancel: Callable[[str], None], name: str = "stretto-output") -> None:
        self._cancel = cancel
        self._events: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._after_tick: tuple[Callable[[], None], ...] = ()
        self._order = threading.Lock()
        self._behind = 0  # ticks that the output thread has yet to deliver
        self._rows: TickRows | None = None  # of the last tick
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures: int = 0

    def start(self) -> None:
        self._thread.start()

    def register(self, request_id: str, stream: OutputStream) -> None:
        self._streams[request_id] = stream
        self._rows = None

    def after_tick(self, callback: Callable[[], None]) -> None:
        """Called after all deltas of a tick were delivered, by the same thread. Must not raise or block."""
        self._after_tick = (*self._after_tick, callback)

    def deliver(self, events: Events) -> None:
        with self._order:
            if not self._behind and self._is_quick(events):
                self._deliver(events)
                return
            self._behind += 1
            self._events.put(events)

    def close(self) -> None:
        """Deliver what is left, then end the thread."""
        self._events.put(None)
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while (events := self._events.get()) is not None:
            self._deliver(events)
            with self._order:
                self._behind -= 1

    def _is_quick(self, events: Events) -> bool:
        """Only tokens, as in most ticks, of few streams."""
        if events.started or events.ends or events.scores or events.progress or events.extras:
            return False
        if self._rows_of(events) is not None:
            return True
        if len(events.requests) > AT_ONCE_MAX:
            return False
        streams = self._streams
        return all((stream := streams.get(one)) is None or stream.light for one in events.requests)

    def _deliver(self, events: Events) -> None:
        for started in events.started:
            self._start(started)
        for request_id, scores in events.scores.items():
            self._tell(request_id, lambda stream, found=scores: stream.score(found))  # type: ignore[misc]
        for request_id, progress in events.progress.items():
            self._tell(request_id, lambda stream, found=progress: stream.advance(found))  # type: ignore[misc]
        rows = self._rows_of(events)
        if rows is not None:
            rows.take(events.tokens)
        else:
            self._push_each(events)
        for terminal in events.ends:
            self._finish(terminal)
        for callback in self._after_tick:
            callback()

    def _rows_of(self, events: Events) -> TickRows | None:
        """If each request has one token, and all are rows of columns."""
        requests = events.requests
        if events.extras or not requests or events.counts.count(1) != len(requests):
            return None
        rows = self._rows
        if rows is None or rows.requests != requests:
            found = map(self._streams.get, requests)
            rows = TickRows.of(requests, (None if stream is None else stream.place for stream in found))
            self._rows = rows
        return rows

    def _push_each(self, events: Events) -> None:
        at = 0
        for request_id, count in zip(events.requests, events.counts, strict=True):
            self._push(request_id, events.tokens[at : at + count], events.extras.get(request_id))
            at += count

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
        self._rows = None
        if stream is None:
            return
        try:
            stream.finish(terminal)
        except Exception:
            self.failures += 1
