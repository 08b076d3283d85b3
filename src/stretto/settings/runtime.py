"""The runtime's settings: how much memory models may take together, and the limits of its connections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stretto.settings.values import Bytes, Count, Seconds


class RuntimeSettings(BaseModel):
    """The process that owns the models."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    memory_budget_bytes: Bytes | Literal["auto"] = "auto"
    """What loaded models may take together, by estimate; auto: nine tenths of the machine's memory."""
    idle_unload_s: Annotated[Seconds, Field(gt=0)] | None = None
    """Models that nobody asked for this long are unloaded; default: only when the memory is needed."""
    prepare_threads: Annotated[Count, Field(ge=1, le=64)] = 2
    """Threads for templates, tokenizing and grammars."""
    frame_bytes_max: Annotated[Bytes, Field(ge=1024)] = 32 << 20
    """Largest message between engine and runtime."""
    calls_pending_max: Annotated[Count, Field(ge=1)] = 4096
    """Most calls of one connection that wait for an answer."""
    unread_bytes_max: Annotated[Bytes, Field(ge=1 << 16)] = 64 << 20
    """Most output that waits for one connection; more, and it is closed."""
