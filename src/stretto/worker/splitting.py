"""Splits stream batches that do not fit a frame into one batch per stream.

A batch holds one tick's output for all streams of a connection. If it exceeds a frame, each stream's part is
sent separately; a part that is still too large ends that stream, never the connection. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from stretto.errors import ReplyTooLargeError
from stretto.rpc.messages import StreamBatch, StreamEnd, error_from

_Value = TypeVar("_Value")


def parts(batch: StreamBatch) -> Iterator[tuple[str, StreamBatch]]:
    """One batch per stream, in order of first occurrence; columns, which are small, come first under ""."""
    if batch.columns is not None:
        yield "", StreamBatch(columns=batch.columns)
    for stream_id in _streams(batch):
        rows = [row for row, name in enumerate(batch.streams) if name == stream_id]
        yield (
            stream_id,
            StreamBatch(
                streams=[stream_id] * len(rows),
                texts=[batch.texts[row] for row in rows],
                counts=[batch.counts[row] for row in rows],
                reasoning=_only(batch.reasoning, stream_id),
                tool_calls=_only(batch.tool_calls, stream_id),
                logprobs=_only(batch.logprobs, stream_id),
                tokens=_only(batch.tokens, stream_id),
                starts=[start for start in batch.starts if start.stream_id == stream_id],
                prompt_logprobs=_only(batch.prompt_logprobs, stream_id),
                progress=_only(batch.progress, stream_id),
                measures=_only(batch.measures, stream_id),
                scores=_only(batch.scores, stream_id),
                ends=[end for end in batch.ends if end.stream_id == stream_id],
            ),
        )


def refusal(stream_id: str, part: StreamBatch) -> StreamBatch:
    """The end of a stream whose output cannot be sent, with its usage as far as known."""
    error = error_from(ReplyTooLargeError("one tick's output for this stream does not fit a message"))
    known = next((end for end in part.ends), StreamEnd(stream_id=stream_id, finish_reason="error"))
    end = StreamEnd(
        stream_id=stream_id, finish_reason="error", error=error, usage=known.usage, timing=known.timing
    )
    return StreamBatch(ends=[end])


def _streams(batch: StreamBatch) -> list[str]:
    named = [*batch.streams, *batch.reasoning, *batch.tool_calls, *batch.logprobs, *batch.tokens]
    named += [*batch.prompt_logprobs, *batch.progress, *batch.measures, *batch.scores]
    marks = [*(start.stream_id for start in batch.starts), *(end.stream_id for end in batch.ends)]
    return list(dict.fromkeys([*named, *marks]))


def _only(column: dict[str, _Value], stream_id: str) -> dict[str, _Value]:
    return {stream_id: column[stream_id]} if stream_id in column else {}
