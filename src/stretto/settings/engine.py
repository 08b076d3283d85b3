"""The section `engine:`, settings of the client: streams, calls to the worker, supervision of its process."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stretto.settings.values import Bytes, Count, Seconds

Positive = Annotated[Seconds, Field(gt=0)]


class EngineSettings(BaseModel):
    """Streams between the worker and its readers, and supervision of the worker process."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    streams_max: Annotated[Count, Field(ge=1, le=1 << 20)] = 1024
    """Maximum number of open generations, including queued ones."""
    stream_credit_tokens: Annotated[Count, Field(ge=1)] = 256
    """Unread tokens at which a reader counts as slow and new requests of its tenant are paused."""
    stream_buffer_bytes: Annotated[Bytes, Field(ge=1024)] = 1 << 20
    """Maximum unread output of one stream; beyond it the reader is dropped."""
    slow_consumer_timeout_s: Positive = 30.0
    """How long output may wait for its reader before the reader is dropped."""
    stream_timeout_s: Positive = 3600.0
    """Maximum duration of a generation, including queueing."""
    stream_idle_timeout_s: Positive = 300.0
    """Maximum time between two tokens of a generation."""

    calls_max: Annotated[Count, Field(ge=1)] = 4096
    """Maximum number of pending calls to the worker."""
    call_timeout_s: Positive = 30.0
    """Time-out of a short call to the worker."""
    load_timeout_s: Positive = 600.0
    """Time-out of calls that may have to load a model first."""

    start_timeout_s: Positive = 60.0
    """Time-out for a worker process to accept calls (models load later)."""
    hang_soft_s: Positive = 60.0
    """After this long without a step or a heartbeat the worker is not ready, and its stacks are dumped."""
    hang_hard_s: Positive = 300.0
    """After this long without a step or a heartbeat the worker is killed and restarted."""
    kill_grace_s: Positive = 5.0
    """Time between SIGTERM (or SIGABRT) and SIGKILL."""
    restart_backoff_s: Positive = 0.1
    """Delay before a restart; doubles with each consecutive death."""
    restart_backoff_max_s: Positive = 10.0
    """Maximum delay before a restart."""
    restarts_max: Annotated[Count, Field(ge=0)] = 5
    """Consecutive deaths, each soon after the start, that count as a crash loop: requests are then rejected
    immediately, and a restart is tried every restart_backoff_max_s."""
    stable_after_s: Positive = 5.0
    """Uptime after which a death no longer counts as soon after the start."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.hang_soft_s > self.hang_hard_s:
            raise ValueError("hang_soft_s is more than hang_hard_s")
        if self.restart_backoff_s > self.restart_backoff_max_s:
            raise ValueError("restart_backoff_s is more than restart_backoff_max_s")
        return self
