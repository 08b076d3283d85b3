"""The section `runtime:`, settings of the worker: memory budget of all models, limits of its connections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stretto.settings.values import Bytes, Count, Seconds


class RuntimeSettings(BaseModel):
    """The worker process, which owns the models."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    own_process: bool | Literal["auto"] = "auto"
    """SDK: whether the model runs in a worker process of its own, so that ticks do not wait for the program's
    Python; auto: with torch on a GPU."""
    memory_budget_bytes: Bytes | Literal["auto"] = "auto"
    """Memory budget of all loaded models, by estimate; auto: 90 % of the machine's memory."""
    idle_unload_s: Annotated[Seconds, Field(gt=0)] | None = None
    """Unload models that were idle for this long; default: only when memory is needed."""
    prepare_threads: Annotated[Count, Field(ge=1, le=64)] = 2
    """Threads for templates, tokenization and grammars."""
    frame_bytes_max: Annotated[Bytes, Field(ge=1024)] = 32 << 20
    """Maximum size of a message between client and worker."""
    calls_pending_max: Annotated[Count, Field(ge=1)] = 4096
    """Maximum pending calls of one connection."""
    unread_bytes_max: Annotated[Bytes, Field(ge=1 << 16)] = 64 << 20
    """Maximum unread output of one connection; beyond it the connection is closed."""
