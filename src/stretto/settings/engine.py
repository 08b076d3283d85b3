"""The engine's settings: streams, calls to the runtime, and how its process is watched."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stretto.settings.values import Bytes, Count, Seconds

Positive = Annotated[Seconds, Field(gt=0)]


class EngineSettings(BaseModel):
    """Streams between the runtime and its readers, and the watch over the runtime's process."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    streams_max: Annotated[Count, Field(ge=1, le=1 << 20)] = 1024
    """Most generations at once, those that wait included."""
    stream_credit_tokens: Annotated[Count, Field(ge=1)] = 256
    """Unread tokens from which on a reader counts as slow, and its client's new requests pause."""
    stream_buffer_bytes: Annotated[Bytes, Field(ge=1024)] = 1 << 20
    """Most unread output of one stream; more, and the reader is dropped."""
    slow_consumer_timeout_s: Positive = 30.0
    """How long output may wait for its reader before the reader is dropped."""
    stream_timeout_s: Positive = 3600.0
    """Longest life of a generation, waiting included."""
    stream_idle_timeout_s: Positive = 300.0
    """Longest silence between two tokens of a generation."""

    calls_max: Annotated[Count, Field(ge=1)] = 4096
    """Most calls to the runtime that wait for an answer."""
    call_timeout_s: Positive = 30.0
    """How long the runtime may take to answer a quick call."""
    load_timeout_s: Positive = 600.0
    """The same for calls that may have to load a model first."""

    start_timeout_s: Positive = 60.0
    """How long a runtime process may take until it accepts calls (models load later)."""
    hang_soft_s: Positive = 60.0
    """Without a step or a heartbeat for this long the runtime is not ready, and its stacks are dumped."""
    hang_hard_s: Positive = 300.0
    """Without one for this long it is ended and restarted."""
    kill_grace_s: Positive = 5.0
    """Between asking the runtime to end (or to abort) and SIGKILL."""
    restart_backoff_s: Positive = 0.1
    """Wait before a restart; doubles with each death in a row."""
    restart_backoff_max_s: Positive = 10.0
    """Longest wait before a restart."""
    restarts_max: Annotated[Count, Field(ge=0)] = 5
    """Deaths in a row, each soon after its start, that are a crash loop: callers are refused at once, and a
    start is tried each restart_backoff_max_s."""
    stable_after_s: Positive = 5.0
    """A runtime that has served for this long did not die soon after its start."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.hang_soft_s > self.hang_hard_s:
            raise ValueError("hang_soft_s is more than hang_hard_s")
        if self.restart_backoff_s > self.restart_backoff_max_s:
            raise ValueError("restart_backoff_s is more than restart_backoff_max_s")
        return self
