"""Streamed chunks of chat and legacy completions, as bytes.

The server's hot path: called for every delta of every stream. Constant parts are encoded once; a delta of
plain text costs one JSON string and one concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stretto.client.api import Delta
from stretto.rpc.messages import PromptProgress, StreamEnd, TokenLogprob, UsageMessage
from stretto.server.generation import finish_reason
from stretto.server.openai.logprobs import Columns, chat_logprobs
from stretto.server.openai.shapes import fingerprint, tool_call_of, usage_of
from stretto.server.operations.timings import RunningTimings, timings_of, total_timings

_encode = msgspec.json.encode


class _Chunks:
    """Shared by both kinds: an envelope encoded once, and the usage at the end."""

    kind = ""

    def __init__(
        self,
        completion_id: str,
        model: str,
        created: int,
        *,
        answers: int,
        include_usage: bool,
        continuous: bool,
        timings_per_token: bool,
    ) -> None:
        self._envelope = {
            "id": completion_id,
            "object": self.kind,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint(model),
        }
        self._head = b"data: " + _encode(self._envelope)[:-1] + b',"choices":[{"index":'
        self._plain_after = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._plain_close = b"}]" + self._plain_after
        self._continuous = continuous
        self.counts_deltas = continuous or timings_per_token
        self._counts = [UsageMessage() for _ in range(answers)]
        self._running = [RunningTimings() for _ in range(answers)] if timings_per_token else []

    def count(self, index: int, prompt_tokens: int, delta: Delta) -> None:
        """Token counts and timings so far, for the chunks of this delta."""
        if self._running:
            self._running[index].count(delta)
        so_far = self._counts[index]
        so_far.prompt_tokens = prompt_tokens
        so_far.completion_tokens += delta.token_count
        if delta.end is not None:
            self._counts[index] = delta.end.usage

    def _after(self, index: int) -> bytes:
        if not self._continuous:
            return self._plain_after
        return b',"usage":' + _encode(usage_of(self._counts[index])) + b"}\n\n"

    def _close(self, index: int) -> bytes:
        return b"}]" + self._after(index) if self._continuous else self._plain_close

    def _progress(self, progress: PromptProgress) -> bytes:
        """llama-server's `prompt_progress`, in a chunk without a choice."""
        shown = {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.computed,
            "time_ms": round(progress.time_s * 1000),
        }
        return b"data: " + _encode({**self._envelope, "choices": [], "prompt_progress": shown}) + b"\n\n"

    def _closed(self, index: int, delta: Delta) -> bytes:
        """The end of a chunk, with timings if it is the last of its answer or if all chunks have them."""
        if self._running:
            timings = self._running[index].so_far(delta.end)
        elif delta.end is not None:
            timings = timings_of(delta.end)
        else:
            return self._close(index)
        return b'}],"timings":' + _encode(timings) + self._after(index)

    def usage(self, usage: UsageMessage, ends: Sequence[StreamEnd] = ()) -> bytes:
        """The usage chunk after the last one, if requested."""
        chunk = {**self._envelope, "choices": [], "usage": usage_of(usage), "timings": total_timings(ends)}
        return b"data: " + _encode(chunk) + b"\n\n"


class ChatChunks(_Chunks):
    kind = "chat.completion.chunk"

    def __init__(
        self,
        completion_id: str,
        model: str,
        created: int,
        *,
        n: int,
        include_usage: bool,
        logprobs: bool,
        continuous: bool = False,
        timings_per_token: bool = False,
    ) -> None:
        super().__init__(
            completion_id,
            model,
            created,
            answers=n,
            include_usage=include_usage,
            continuous=continuous,
            timings_per_token=timings_per_token,
        )
        self._logprobs = logprobs
        self._starts = [self._head + b"%d" % index + b',"delta":' for index in range(n)]
        self._text = [start + b'{"content":' for start in self._starts]
        self._text_end = b'},"logprobs":null,"finish_reason":null'
        self._new = [True] * n
        self._calls = [0] * n

    def render(self, index: int, delta: Delta) -> bytes:
        """All chunks of one delta; empty if there is nothing to send yet."""
        if delta.text and not (
            self._new[index]
            or delta.reasoning
            or delta.tool_calls
            or delta.logprobs
            or delta.end
            or self._running
        ):
            return self._text[index] + _encode(delta.text) + self._text_end + self._close(index)
        if delta.progress is not None and not (delta.text or delta.end or delta.reasoning):
            return self._progress(delta.progress)
        parts = self._parts(index, delta)
        return self._close(index).join(parts) + self._closed(index, delta) if parts else b""

    def _parts(self, index: int, delta: Delta) -> list[bytes]:
        parts = []
        if self._new[index]:
            self._new[index] = False
            parts.append(self._chunk(index, {"role": "assistant", "content": ""}))
        if delta.reasoning:
            parts.append(self._chunk(index, {"reasoning_content": delta.reasoning}))
        if delta.text or (delta.logprobs and self._logprobs):
            logprobs = chat_logprobs(delta.logprobs) if self._logprobs else None
            parts.append(self._chunk(index, {"content": delta.text}, logprobs))
        for call in delta.tool_calls:
            self._calls[index] += bool(call.name)
            place = {"index": self._calls[index] - 1}
            if call.name:
                parts.append(self._chunk(index, {"tool_calls": [{**place, **tool_call_of(call)}]}))
            elif call.arguments:
                piece = {**place, "function": {"arguments": call.arguments}}
                parts.append(self._chunk(index, {"tool_calls": [piece]}))
        if delta.end is not None:
            reason = finish_reason(delta.end, calls=self._calls[index] > 0)
            parts.append(self._chunk(index, {}, None, reason))
        return parts

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None
    ) -> bytes:
        rest = _encode({"logprobs": logprobs, "finish_reason": reason})[1:-1]
        return self._starts[index] + _encode(delta) + b"," + rest


class TextChunks(_Chunks):
    kind = "text_completion"

    def __init__(
        self,
        completion_id: str,
        model: str,
        created: int,
        *,
        echoes: Sequence[str],
        include_usage: bool,
        logprobs: int | None,
        continuous: bool = False,
        timings_per_token: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(
            completion_id,
            model,
            created,
            answers=len(echoes),
            include_usage=include_usage,
            continuous=continuous,
            timings_per_token=timings_per_token,
        )
        self._silent = silent
        self._prompts: list[list[TokenLogprob]] = [[] for _ in echoes]
        self._starts = [self._head + b"%d" % index + b',"text":' for index in range(len(echoes))]
        self._text_end = b',"logprobs":null,"finish_reason":null'
        self._echoes = list(echoes)
        self._columns = [Columns() for _ in echoes]
        self._logprobs = logprobs

    def render(self, index: int, delta: Delta) -> bytes:
        self._prompts[index].extend(delta.prompt_logprobs)
        if delta.progress is not None and not (delta.text or delta.end):
            return self._progress(delta.progress)
        if self._silent:
            delta = Delta(token_count=0, end=cut_short(delta.end)) if delta.end is not None else Delta()
        text = delta.reasoning + delta.text if delta.reasoning else delta.text
        if not (text or delta.logprobs or delta.end):
            return b""
        if self._echoes[index]:
            text, self._echoes[index] = self._echoes[index] + text, ""
        if text and not (delta.logprobs or delta.end or self._prompts[index] or self._running):
            return self._starts[index] + _encode(text) + self._text_end + self._close(index)
        return self._chunk(index, text, delta)

    def _chunk(self, index: int, text: str, delta: Delta) -> bytes:
        logprobs = None
        prompt, self._prompts[index] = self._prompts[index], []
        if self._logprobs is not None and (delta.logprobs or prompt):
            logprobs = self._columns[index].take(delta.logprobs, top=self._logprobs > 0, prompt=prompt)
        reason = None if delta.end is None else finish_reason(delta.end, calls=False)
        rest = _encode({"logprobs": logprobs, "finish_reason": reason})[1:-1]
        return self._starts[index] + _encode(text) + b"," + rest + self._closed(index, delta)


def cut_short(end: StreamEnd) -> StreamEnd:
    """The end of a request with max_tokens: 0."""
    if end.finish_reason == "cancelled":
        return end
    usage = msgspec.structs.replace(end.usage, completion_tokens=0, reasoning_tokens=0)
    return msgspec.structs.replace(end, finish_reason="length", usage=usage)
