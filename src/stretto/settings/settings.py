"""All settings together: models, their common defaults, the batcher, the server."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stretto.settings.engine import EngineSettings
from stretto.settings.model import ModelSettings
from stretto.settings.runtime import RuntimeSettings
from stretto.settings.server import ServerSettings
from stretto.settings.values import Count, Milliseconds

BypassField = Literal["deadline_ms", "guidance", "tool_use", "fork_of"]


class GenerateBatcherSettings(BaseModel):
    """How requests that arrive together are sent to the runtime as one call."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    enabled: bool = True
    """Off: every request is a call of its own."""
    min_batch_size: Annotated[Count, Field(ge=1, le=1024)] = 2
    """The adaptive target's floor."""
    max_batch_size: Annotated[Count, Field(ge=1, le=1024)] = 16
    """Most requests in one call."""
    min_hold_ms: Milliseconds = 0.75
    """First wait for company while another call is in flight."""
    max_hold_ms: Milliseconds = 3.0
    """Longest wait for company."""
    background_hold_extension_ms: Milliseconds = 2.0
    """How much longer background requests wait."""
    target_batch_time_ms: Annotated[Milliseconds, Field(gt=0)] = 12.0
    """What one call should take; the target batch size follows it."""
    pause_on_backpressure_ms: Milliseconds = 20.0
    """How long a client's calls pause when its streams are full."""
    near_deadline_ms: Milliseconds = 50.0
    """A request with less time left than this is not held: it leaves as an urgent one does."""
    bypass: tuple[BypassField, ...] = ()
    """Requests that set one of these (deadline_ms, guidance, tool_use, fork_of) are calls of their own."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_batch_size > self.max_batch_size:
            raise ValueError("min_batch_size is more than max_batch_size")
        if self.min_hold_ms > self.max_hold_ms:
            raise ValueError("min_hold_ms is more than max_hold_ms")
        return self


class Settings(BaseModel):
    """What a configuration file holds. `models` are complete: their own keys over `defaults`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    version: Literal[1] = 1
    """The version of this file's format."""
    models: dict[str, ModelSettings] = {}
    """Settings by model name."""
    defaults: ModelSettings = ModelSettings()
    """Settings of models that say nothing else, also of those that are not listed."""
    generate_batcher: GenerateBatcherSettings = GenerateBatcherSettings()
    """How requests that arrive together are sent."""
    engine: EngineSettings = EngineSettings()
    """Streams, and the watch over the runtime's process."""
    runtime: RuntimeSettings = RuntimeSettings()
    """The process that owns the models."""
    server: ServerSettings = ServerSettings()
    """The HTTP server."""

    def model(self, name: str) -> ModelSettings:
        """The settings of a model, listed or not."""
        return self.models.get(name, self.defaults)
