"""The llama.cpp backend: GGUF models on CPU, CUDA or Metal, through llama-cpp-python's low-level C API.

Names are looked up when they are first asked for: memory is estimated without numpy and llama.cpp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.backends.llamacpp.backend import LlamaCppBackend
    from stretto.backends.llamacpp.context import Context
    from stretto.backends.llamacpp.model import LoadWarning, Model, load
    from stretto.backends.llamacpp.native.vocabulary import Vocabulary
    from stretto.backends.llamacpp.options import ContextOptions, ModelOptions
    from stretto.errors import ContextError, LlamaCppError, LlamaCppMissingError, ModelLoadError

__all__ = [
    "Context",
    "ContextError",
    "ContextOptions",
    "LlamaCppBackend",
    "LlamaCppError",
    "LlamaCppMissingError",
    "LoadWarning",
    "Model",
    "ModelLoadError",
    "ModelOptions",
    "Vocabulary",
    "load",
]

_HOMES = {
    "LlamaCppBackend": "backend",
    "Context": "context",
    "LoadWarning": "model",
    "Model": "model",
    "load": "model",
    "Vocabulary": "native.vocabulary",
    "ContextOptions": "options",
    "ModelOptions": "options",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES[name]}" if name in _HOMES else "stretto.errors"
    return getattr(import_module(home), name)
