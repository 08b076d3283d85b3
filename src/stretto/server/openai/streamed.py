"""Fields of the routes that stream in OpenAI's chunks: /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import ClassVar

from stretto.errors import InvalidFieldError
from stretto.server.http.fields import Body, Ignored


class StreamOptions(Body):
    where: ClassVar[str] = "stream_options"
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: usage so far in every chunk; only together with include_usage."""
    include_obfuscation: Ignored = None


class Streamed(Body):
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    """Streams: include timings in every chunk, not only in the last one."""
    return_progress: bool | None = None
    """Streams report prefill progress (llama-server)."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidFieldError("requires a stream", param="stream_options", hint="send stream: true")
