"""The llama.cpp backend: GGUF models on CPU, CUDA or Metal, through llama-cpp-python's low-level C API."""

from __future__ import annotations

from stretto.backends.llamacpp.backend import LlamaCppBackend
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.model import LoadWarning, Model, ModelOptions, load
from stretto.backends.llamacpp.native.vocabulary import Vocabulary
from stretto.backends.llamacpp.options import ContextOptions
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
