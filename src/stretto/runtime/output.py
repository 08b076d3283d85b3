"""Tokens to text, off the tick thread: detokenizing, UTF-8, stop strings, reasoning, delivery.

One thread for all streams of a loop, and one handoff a tick. A stream is registered before its request is
submitted, so no token is ever early. Reading slowly costs a tick nothing: a stream only appends to its
reader's queue.
"""

from __future__ import annotations

import queue
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.core.tick import Events, Terminal
from stretto.text.detokenizer import Detokenizer
from stretto.text.reasoning import ReasoningSplitter, Tags
from stretto.text.stops import StopMatcher
from stretto.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """What one tick brought to one stream. The last one carries the end."""

    text: str = ""
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    extras: object = None
    end: Terminal | None = None


class TextStream:
    """One request's output. `sink` takes deltas; `on_stop` tells the scheduler that a stop string came."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sink: Callable[[Delta], None],
        on_stop: Callable[[int], None],
        *,
        stops: Sequence[str] = (),
        tags: Tags | None = None,
        opened: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._matcher = StopMatcher(stops) if stops else None
        self._splitter = ReasoningSplitter(tags, opened=opened) if tags is not None else None
        self._sink = sink
        self._on_stop = on_stop
        self._stopped = False

    def push(self, tokens: array[int], extras: object) -> None:
        if self._stopped:
            return  # generated between the stop string and the tick that heard of it
        shown: list[str] = []
        kept = 0
        for token in tokens:
            text = "" if self._tokenizer.is_control(token) else self._detokenizer.push(token)
            kept += 1
            if self._matcher is not None:
                found = self._matcher.push(text)
                shown.append(found.emit)
                if found.stop is not None:
                    self._stopped = True
                    self._on_stop(found.tokens_kept)
                    break
            else:
                shown.append(text)
        text, reasoning = self._split("".join(shown))
        self._sink(Delta(text, reasoning, tuple(tokens[:kept]), extras))

    def finish(self, terminal: Terminal) -> None:
        rest = ""
        if not self._stopped:
            tail = self._detokenizer.flush()
            rest = (
                self._matcher.push(tail).emit + self._matcher.flush() if self._matcher is not None else tail
            )
        text, reasoning = self._split(rest, last=True)
        self._sink(Delta(text, reasoning, end=terminal))

    def _split(self, text: str, *, last: bool = False) -> tuple[str, str]:
        if self._splitter is None:
            return text, ""
        split = self._splitter.push(text)
        content, reasoning = split.content, split.reasoning
        if last:
            tail = self._splitter.flush()
            content, reasoning = content + tail.content, reasoning + tail.reasoning
        return content, reasoning


class OutputPump:
    """The output thread. `deliver` is the loop's handoff: it only puts the tick's events into a queue."""

    def __init__(self, cancel: Callable[[str], None], name: str = "stretto-output") -> None:
        self._cancel = cancel
        self._events: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self._streams: dict[str, TextStream] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures: int = 0

    def start(self) -> None:
        self._thread.start()

    def register(self, request_id: str, stream: TextStream) -> None:
        self._streams[request_id] = stream

    def deliver(self, events: Events) -> None:
        self._events.put(events)

    def close(self) -> None:
        """Deliver what is left, then end the thread."""
        self._events.put(None)
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(5.0)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def _run(self) -> None:
        while (events := self._events.get()) is not None:
            at = 0
            for request_id, count in zip(events.requests, events.counts, strict=True):
                self._push(request_id, events.tokens[at : at + count], events.extras.get(request_id))
                at += count
            for terminal in events.ends:
                self._finish(terminal)

    def _push(self, request_id: str, tokens: array[int], extras: object) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        try:
            stream.push(tokens, extras)
        except Exception:  # a reader whose sink raises loses its stream; the others do not notice
            self._drop(request_id)

    def _finish(self, terminal: Terminal) -> None:
        stream = self._streams.pop(terminal.request_id, None)
        if stream is None:
            return
        try:
            stream.finish(terminal)
        except Exception:
            self.failures += 1

    def _drop(self, request_id: str) -> None:
        self.failures += 1
        self._streams.pop(request_id, None)
        self._cancel(request_id)
