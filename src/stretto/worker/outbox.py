"""From deltas to frames: the output of one tick for all streams of a connection becomes one `StreamBatch`.

An `Outbox` belongs to one model and is filled by one thread at a time; at the end of a tick its content is
sent, or handed to the RPC loop at once where the socket has no room or a stream ends. A `Mailbox` belongs to
one connection and limits its pending output.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stretto.core.tick import End, Started, Terminal
from stretto.errors import FrameError, TooLargeError
from stretto.rpc.connection import Connection
from stretto.rpc.envelope import STREAM_BATCH, Notification
from stretto.rpc.messages import (
    PromptProgress,
    StreamBatch,
    StreamEnd,
    StreamStart,
    TimingMessage,
    TokenColumns,
    ToolCallDelta,
    UsageMessage,
    error_from,
)
from stretto.text.logprobs import prompt_logprobs, token_logprobs
from stretto.text.stream import TextDelta
from stretto.text.tokenizer import Tokenizer
from stretto.worker import splitting
from stretto.worker.media import PlacedMedia
from stretto.worker.terminal_errors import error_of

ROW_BYTES = 64  # approximate overhead per row, besides its text


class Mailbox:
    """Output queue of one connection. `send_now` and `put` on any thread, `drain` on the RPC loop.

    `on_cut` is called for a stream that is ended here because its output of one tick does not fit a frame.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        unread_bytes_max: int,
        on_end: Callable[[str], None],
        on_cut: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._unread_bytes_max = unread_bytes_max
        self._on_end = on_end
        self._on_cut = on_cut
        self._cut: set[str] = set()  # until their regular end arrives, which is not sent again
        self._waiting: deque[StreamBatch] = deque()
        self._waiting_bytes = 0
        self._draining = False
        self._lock = threading.Lock()

    def send_now(self, batch: StreamBatch) -> bool:
        """Whether it was sent at once. Nothing may wait before it, and ends are for the RPC loop to know."""
        with self._lock:
            if self._waiting or self._draining or self._cut or batch.ends:
                return False
            return self._connection.send_now(Notification(STREAM_BATCH, batch))

    def put(self, batch: StreamBatch) -> None:
        with self._lock:
            self._waiting.append(batch)
            self._waiting_bytes += _size(batch)

    def drain(self) -> None:
        with self._lock:
            batches, self._waiting = self._waiting, deque()
            waiting_bytes, self._waiting_bytes = self._waiting_bytes, 0
            self._draining = True
        if waiting_bytes + self._connection.unsent_bytes > self._unread_bytes_max:
            self._connection.close(FrameError(f"the peer does not read: {waiting_bytes} bytes are pending"))
        try:
            for batch in batches:
                self._send(batch)
        finally:
            self._draining = False

    def _send(self, batch: StreamBatch) -> None:
        if self._cut:
            self._send_parts(batch)
            return
        try:
            self._connection.send(Notification(STREAM_BATCH, batch))
        except TooLargeError:
            self._send_parts(batch)
        else:
            self._tell_ends(batch)

    def _send_parts(self, batch: StreamBatch) -> None:
        """Send each stream's part separately; a part that still does not fit a frame ends only its stream."""
        for stream_id, part in splitting.parts(batch):
            if stream_id in self._cut:
                self._cut.difference_update(end.stream_id for end in part.ends)
                continue
            try:
                self._connection.send(Notification(STREAM_BATCH, part))
            except TooLargeError:
                self._cut_off(stream_id, part)
            else:
                self._tell_ends(part)

    def _cut_off(self, stream_id: str, part: StreamBatch) -> None:
        end = splitting.refusal(stream_id, part)
        if not part.ends:
            self._cut.add(stream_id)
            self._on_cut(stream_id)
        self._connection.send(Notification(STREAM_BATCH, end))
        self._tell_ends(end)

    def _tell_ends(self, batch: StreamBatch) -> None:
        for end in batch.ends:
            self._on_end(end.stream_id)


class OpenColumns:
    """Rows of a tick for one connection: `counts[i]` tokens of the stream `numbers[i]`."""

    __slots__ = ("counts", "numbers", "tokens")

    def __init__(self) -> None:
        self.numbers = array("I")
        self.counts = array("I")
        self.tokens = array("i")

    def message(self) -> TokenColumns:
        columns = (self.numbers, self.counts, self.tokens)
        if sys.byteorder == "big":
            for column in columns:
                column.byteswap()
        numbers, counts, tokens = (column.tobytes() for column in columns)
        return TokenColumns(numbers=numbers, counts=counts, tokens=tokens)


class ColumnsOf(NamedTuple):
    """The columns of one connection in whichever tick it is."""

    outbox: Outbox
    mailbox: Mailbox

    def extend(self, numbers: array[int], counts: array[int], tokens: array[int]) -> None:
        columns = self.outbox.columns(self.mailbox)
        columns.numbers.extend(numbers)
        columns.counts.extend(counts)
        columns.tokens.extend(tokens)


class RowPlace(NamedTuple):
    table: ColumnsOf
    number: int


class Outbox:
    """One model's deltas, collected until the end of the tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[Mailbox, StreamBatch] = {}
        self._columns: dict[Mailbox, OpenColumns] = {}

    def batch(self, mailbox: Mailbox) -> StreamBatch:
        found = self._open.get(mailbox)
        if found is None:
            found = self._open[mailbox] = StreamBatch()
        return found

    def columns(self, mailbox: Mailbox) -> OpenColumns:
        found = self._columns.get(mailbox)
        if found is None:
            found = self._columns[mailbox] = OpenColumns()
        return found

    def flush(self) -> None:
        """End of a tick: one handoff for all connections."""
        if self._columns:
            for mailbox, columns in self._columns.items():
                self.batch(mailbox).columns = columns.message()
            self._columns = {}
        if not self._open:
            return
        filled, self._open = self._open, {}
        late = [mailbox for mailbox, batch in filled.items() if not mailbox.send_now(batch)]
        if not late:
            return
        for mailbox in late:
            mailbox.put(filled[mailbox])
        try:
            self._loop.call_soon_threadsafe(_drain, tuple(late))
        except RuntimeError:  # the RPC loop is closed: there is no reader
            self._open = {}


def _drain(mailboxes: tuple[Mailbox, ...]) -> None:
    for mailbox in mailboxes:
        mailbox.drain()


class StreamSink:
    """Writes one stream's deltas into its connection's batch. `waited_s`: time before submission."""

    def __init__(
        self,
        outbox: Outbox,
        mailbox: Mailbox,
        tokenizer: Tokenizer,
        *,
        stream_id: str,
        echo_tokens: bool,
        waited_s: float,
        media: PlacedMedia | None = None,
    ) -> None:
        self._outbox = outbox
        self._mailbox = mailbox
        self._tokenizer = tokenizer
        self._stream_id = stream_id
        self._echo_tokens = echo_tokens
        self._waited_s = waited_s
        self._media = media
        self._clock = time.monotonic
        self._started_s = self._clock() - waited_s

    def started(self, started: Started) -> None:
        start = stream_start(self._stream_id, started, self._waited_s)
        self._outbox.batch(self._mailbox).starts.append(start)

    def __call__(self, delta: TextDelta) -> None:
        batch, stream_id = self._outbox.batch(self._mailbox), self._stream_id
        if delta.text or delta.tokens:
            batch.streams.append(stream_id)
            batch.texts.append(delta.text)
            batch.counts.append(len(delta.tokens))
        if delta.reasoning:
            batch.reasoning[stream_id] = batch.reasoning.get(stream_id, "") + delta.reasoning
        if delta.calls:
            calls = [
                ToolCallDelta(index=call.index, name=call.name, arguments=call.arguments, done=call.done)
                for call in delta.calls
            ]
            batch.tool_calls.setdefault(stream_id, []).extend(calls)
        if delta.extras is not None:
            found = token_logprobs(self._tokenizer, delta.tokens, delta.extras)
            batch.logprobs.setdefault(stream_id, []).extend(found)
        if self._echo_tokens and delta.tokens:
            batch.tokens.setdefault(stream_id, []).extend(delta.tokens)
        if delta.scored:
            tokens, measured = zip(*delta.scored, strict=True)
            found = prompt_logprobs(self._tokenizer, tokens, measured)
            batch.prompt_logprobs.setdefault(stream_id, []).extend(found)
        if delta.progress is not None:
            batch.progress[stream_id] = PromptProgress(
                computed=delta.progress.computed,
                total=delta.progress.total,
                cached=delta.progress.cached,
                time_s=self._clock() - self._started_s,
            )
        if delta.end is not None:
            batch.ends.append(stream_end(stream_id, delta, delta.end, self._waited_s, self._media))


def stream_start(stream_id: str, started: Started, waited_s: float) -> StreamStart:
    return StreamStart(
        stream_id=stream_id,
        queue_wait_s=started.queue_wait_s + waited_s,
        prompt_tokens=started.prompt_tokens,
        cached_tokens=started.cached_tokens,
    )


def stream_end(
    stream_id: str,
    delta: TextDelta,
    terminal: Terminal,
    waited_s: float,
    media: PlacedMedia | None = None,
) -> StreamEnd:
    error = error_of(terminal)
    ttft_s = None if terminal.ttft_s is None else terminal.ttft_s + waited_s
    return StreamEnd(
        stream_id=stream_id,
        finish_reason=_reason(delta, terminal, failed=error is not None),
        error=None if error is None else error_from(error),
        stop=delta.stop,
        usage=UsageMessage(
            prompt_tokens=terminal.prompt_tokens,
            cached_tokens=terminal.cached_tokens,
            completion_tokens=terminal.tokens_kept,
            reasoning_tokens=min(delta.reasoning_tokens, terminal.tokens_kept),
            proposed_drafts=terminal.proposed_drafts,
            accepted_drafts=terminal.accepted_drafts,
            image_tokens=media.image_rows if media is not None else 0,
            audio_tokens=media.audio_rows if media is not None else 0,
        ),
        timing=TimingMessage(
            queue_wait_s=terminal.queue_wait_s + waited_s,
            ttft_s=ttft_s,
            duration_s=terminal.duration_s + waited_s,
            preemptions=terminal.preemptions,
            admitted=terminal.admitted,
            encode_s=terminal.encode_s + waited_s if terminal.encode_s else 0.0,
        ),
    )


def _reason(delta: TextDelta, terminal: Terminal, *, failed: bool) -> str:
    if failed:
        return "error"
    if terminal.end is End.CANCELLED:
        return "cancelled"
    return "tool_calls" if delta.called and terminal.reason == "stop" else terminal.reason


def _size(batch: StreamBatch) -> int:
    rows = len(batch.streams) + sum(map(len, batch.logprobs.values())) + len(batch.starts) + len(batch.ends)
    rows += sum(map(len, batch.prompt_logprobs.values()))
    rows += sum(map(len, batch.measures.values())) + sum(map(len, batch.scores.values()))
    texts = sum(map(len, batch.texts)) + sum(map(len, batch.reasoning.values()))
    columns = batch.columns
    ids = 0 if columns is None else 2 * len(columns.numbers) + len(columns.tokens)
    return ROW_BYTES * rows + texts + ids
