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
    """Batching of requests that arrive together into one call to the worker."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    enabled: bool = True
    """Off: every request is its own call."""
    min_batch_size: Annotated[Count, Field(ge=1, le=1024)] = 2
    """Lower bound of the adaptive target size."""
    max_batch_size: Annotated[Count, Field(ge=1, le=1024)] = 16
    """Maximum requests per call."""
    min_hold_ms: Milliseconds = 0.75
    """Initial hold for further requests while another call is in flight."""
    max_hold_ms: Milliseconds = 3.0
    """Maximum hold for further requests."""
    background_hold_extension_ms: Milliseconds = 2.0
    """How much longer background requests are held."""
    target_batch_time_ms: Annotated[Milliseconds, Field(gt=0)] = 12.0
    """Target duration of a call; the target batch size adapts to it."""
    pause_on_backpressure_ms: Milliseconds = 20.0
    """How long a tenant's requests are paused when its streams are full."""
    near_deadline_ms: Milliseconds = 50.0
    """A request with less time left until its deadline is not held."""
    bypass: tuple[BypassField, ...] = ()
    """Requests that set one of these fields (deadline_ms, guidance, tool_use, fork_of) are sent alone."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_batch_size > self.max_batch_size:
            raise ValueError("min_batch_size is more than max_batch_size")
        if self.min_hold_ms > self.max_hold_ms:
            raise ValueError("min_hold_ms is more than max_hold_ms")
        return self


class Settings(BaseModel):
    """The content of a configuration file. `models` are resolved: their own keys override `defaults`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    version: Literal[1] = 1
    """Version of the file format."""
    models: dict[str, ModelSettings] = {}
    """Settings by model name."""
    defaults: ModelSettings = ModelSettings()
    """Default settings of all models, including unlisted ones."""
    generate_batcher: GenerateBatcherSettings = GenerateBatcherSettings()
    """Batching of requests that arrive together."""
    engine: EngineSettings = EngineSettings()
    """The client: streams, and supervision of the worker process."""
    runtime: RuntimeSettings = RuntimeSettings()
    """The worker process, which owns the models."""
    server: ServerSettings = ServerSettings()
    """The HTTP server."""

    def model(self, name: str) -> ModelSettings:
        """The settings of a model, listed or not."""
        return self.models.get(name, self.defaults)
