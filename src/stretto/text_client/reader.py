"""TextReader: one stream's deltas of token ids to deltas of text, as the worker would have made them.

Pure: no clock, no I/O. The same `TextStream` makes the text in either place; here it is fed when the caller
reads, so tokens that arrived together are converted together.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import cast

import msgspec

from stretto.client.api import Delta
from stretto.core.tick import End, PromptScores, Terminal
from stretto.rpc.messages import Error, GenerateParams, StreamEnd, ToolCallDelta, exception_of
from stretto.text.logprobs import prompt_logprobs, token_logprobs
from stretto.text.requests import PreparedText
from stretto.text.stream import TextDelta, TextStream
from stretto.text.tokenizer import Tokenizer


class TextReader:
    """`on_stop` is told how many tokens to keep when a stop string is found."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prepared: PreparedText,
        params: GenerateParams,
        *,
        on_stop: Callable[[int], None],
        waited_s: float = 0.0,
    ) -> None:
        self._tokenizer = tokenizer
        self._echo_tokens = params.echo_tokens
        asked = params.sampling.get("logprobs")
        self._measured = isinstance(asked, int) and asked >= 0
        self._waited_s = waited_s  # before the request was handed on
        self._tokens: list[int] = []  # not yet converted: their measures have not arrived
        self._measures: list[object] = []
        self._out = Delta()
        self._ended: TextDelta | None = None
        self._stream = TextStream(
            tokenizer,
            self._take,
            on_stop,
            stops=prepared.stops,
            tags=prepared.prompt.tags,
            opened=prepared.prompt.opened,
            tools=prepared.tools,
            shown=prepared.shown,
        )

    def read(self, raw: Delta) -> Delta | None:
        """The text of what arrived; None if there is nothing to show yet."""
        self._out = out = Delta()
        if raw.start is not None:
            waited = raw.start.queue_wait_s + self._waited_s
            out.start = msgspec.structs.replace(raw.start, queue_wait_s=waited)
        out.progress = raw.progress
        for scores in raw.scores:
            self._stream.score(PromptScores(scores.start, list(scores.measured)))
        self._tokens += raw.tokens
        self._measures += raw.measures
        self._convert(all_of_them=raw.end is not None)
        if raw.end is not None:
            self._stream.finish(terminal_of(raw.end))
            out.end = self._end(raw.end)
        if not (raw.tokens or out.progress or out.prompt_logprobs or out.end or _shows(out)):
            return None
        return out

    def fail(self, error: Error, end: StreamEnd | None) -> Delta | None:
        """What was held back when the stream failed; None if nothing was."""
        self._out = out = Delta()
        self._convert(all_of_them=True)
        known = end if end is not None else StreamEnd(stream_id="", finish_reason="error")
        failed = msgspec.structs.replace(known, finish_reason="error", error=error)
        self._stream.finish(terminal_of(failed))
        return out if _shows(out) else None

    def _convert(self, *, all_of_them: bool) -> None:
        count = len(self._tokens)
        if self._measured and not all_of_them:
            count = min(count, len(self._measures))
        if not count:
            return
        tokens, self._tokens = self._tokens[:count], self._tokens[count:]
        measures, self._measures = self._measures[:count], self._measures[count:]
        self._stream.push(array("i", tokens), measures if self._measured and measures else None)

    def _take(self, delta: TextDelta) -> None:
        """The stream's sink: as `StreamSink` in the worker, without the wire."""
        out = self._out
        out.text += delta.text
        out.reasoning += delta.reasoning
        out.token_count += len(delta.tokens)
        for call in delta.calls:
            out.tool_calls.append(
                ToolCallDelta(index=call.index, name=call.name, arguments=call.arguments, done=call.done)
            )
        if delta.extras is not None:
            out.logprobs += token_logprobs(self._tokenizer, delta.tokens, delta.extras)
        if self._echo_tokens:
            out.tokens += delta.tokens
        if delta.scored:
            tokens, measured = zip(*delta.scored, strict=True)
            out.prompt_logprobs += prompt_logprobs(self._tokenizer, tokens, measured)
        if delta.end is not None:
            self._ended = delta

    def _end(self, end: StreamEnd) -> StreamEnd:
        final = cast(TextDelta, self._ended)
        terminal = cast(Terminal, final.end)
        reason = terminal.reason if terminal.end is End.FINISHED else end.finish_reason
        timing = end.timing
        ttft_s = None if timing.ttft_s is None else timing.ttft_s + self._waited_s
        return msgspec.structs.replace(
            end,
            finish_reason="tool_calls" if final.called and reason == "stop" else reason,
            stop=final.stop,
            usage=msgspec.structs.replace(
                end.usage,
                completion_tokens=terminal.tokens_kept,
                reasoning_tokens=min(final.reasoning_tokens, terminal.tokens_kept),
            ),
            timing=msgspec.structs.replace(
                timing,
                queue_wait_s=timing.queue_wait_s + self._waited_s,
                ttft_s=ttft_s,
                duration_s=timing.duration_s + self._waited_s,
                encode_s=timing.encode_s + self._waited_s if timing.encode_s else 0.0,
            ),
        )


def _shows(delta: Delta) -> bool:
    return bool(delta.text or delta.reasoning or delta.tool_calls or delta.logprobs or delta.token_count)


_ENDS = {"stop": End.FINISHED, "length": End.FINISHED, "cancelled": End.CANCELLED}


def terminal_of(end: StreamEnd) -> Terminal:
    """The end as the stream's text needs it: how, why, and the tokens that count."""
    kind = _ENDS.get(end.finish_reason, End.FAILED)
    reason = {End.FINISHED: end.finish_reason, End.CANCELLED: "client"}.get(kind, "")
    usage, timing = end.usage, end.timing
    return Terminal(
        request_id=end.stream_id,
        end=kind,
        reason=reason or (end.error.code if end.error is not None else "internal_error"),
        tokens_kept=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.completion_tokens,
        preemptions=timing.preemptions,
        duration_s=timing.duration_s,
        queue_wait_s=timing.queue_wait_s,
        ttft_s=timing.ttft_s,
        admitted=timing.admitted,
        proposed_drafts=usage.proposed_drafts,
        accepted_drafts=usage.accepted_drafts,
        encode_s=timing.encode_s,
        error=None if end.error is None else exception_of(end.error),
    )
