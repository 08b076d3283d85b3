"""One stream's output as token ids: rows in its connection's columns, without text.

Takes the place of a `TextStream` for calls with a number, whose caller makes the text itself. The cost per
token counts: a row is three appends.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import cast

from stretto.core.tick import End, Progress, PromptScores, Started, Terminal
from stretto.errors import StrettoError
from stretto.rpc.messages import PromptMeasures, PromptProgress, TokenMeasure
from stretto.text.logprobs import MeasuredLogprob
from stretto.text.stream import TextDelta
from stretto.worker.media import PlacedMedia
from stretto.worker.outbox import ColumnsOf, Mailbox, Outbox, RowPlace, stream_end, stream_start


class TokenStream:
    """`waited_s`: time before submission. `broken`: a failure ended it, as in `TextStream`."""

    __slots__ = (
        "_clock",
        "_mailbox",
        "_media",
        "_outbox",
        "_started_s",
        "_stream_id",
        "_waited_s",
        "broken",
        "place",
    )
    light = True

    def __init__(
        self,
        outbox: Outbox,
        mailbox: Mailbox,
        *,
        stream_id: str,
        number: int,
        waited_s: float,
        media: PlacedMedia | None = None,
    ) -> None:
        self._outbox = outbox
        self._mailbox = mailbox
        self._stream_id = stream_id
        self.place = RowPlace(ColumnsOf(outbox, mailbox), number)
        self._waited_s = waited_s
        self._media = media
        self._clock = time.monotonic
        self._started_s = self._clock() - waited_s
        self.broken = False

    def start(self, started: Started) -> None:
        start = stream_start(self._stream_id, started, self._waited_s)
        self._outbox.batch(self._mailbox).starts.append(start)

    def push(self, tokens: array[int], extras: object) -> None:
        columns = self._outbox.columns(self._mailbox)
        columns.numbers.append(self.place.number)
        columns.counts.append(len(tokens))
        columns.tokens.extend(tokens)
        if extras is not None:
            found = self._outbox.batch(self._mailbox).measures.setdefault(self._stream_id, [])
            measures = [_measure(one) for one in cast("Sequence[MeasuredLogprob | None]", extras)]
            found.extend((measures + [None] * len(tokens))[: len(tokens)])  # one for each token

    def score(self, scores: PromptScores) -> None:
        measured = [_measure(one) for one in cast("list[MeasuredLogprob | None]", scores.measured)]
        found = self._outbox.batch(self._mailbox).scores.setdefault(self._stream_id, [])
        found.append(PromptMeasures(start=scores.start, measured=measured))

    def advance(self, progress: Progress) -> None:
        self._outbox.batch(self._mailbox).progress[self._stream_id] = PromptProgress(
            computed=progress.computed,
            total=progress.total,
            cached=progress.cached,
            time_s=self._clock() - self._started_s,
        )

    def finish(self, terminal: Terminal) -> None:
        if self.broken and terminal.reason == "client":  # cancelled because a push failed
            terminal = terminal._replace(end=End.FAILED, reason=StrettoError.code)
        end = stream_end(self._stream_id, TextDelta(end=terminal), terminal, self._waited_s, self._media)
        self._outbox.batch(self._mailbox).ends.append(end)


def _measure(found: MeasuredLogprob | None) -> TokenMeasure | None:
    if found is None:
        return None
    return TokenMeasure(
        logprob=found.logprob, top_tokens=list(found.top_tokens), top_logprobs=list(found.top_logprobs)
    )
