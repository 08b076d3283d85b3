"""What can go wrong between us and llama.cpp before any request runs.

StrettoError
└── BackendError
    └── LlamaCppError
        ├── LlamaCppMissingError   the extra is not installed, or its library does not load
        ├── ModelLoadError         llama.cpp refused a file that looked sound
        └── ContextError           no context with these options: they contradict, or memory is short
"""

from __future__ import annotations

from stretto.errors import BackendError


class LlamaCppError(BackendError):
    code = "llamacpp_error"
    retryable = False


class LlamaCppMissingError(LlamaCppError):
    code = "llamacpp_missing"
    hint = "pip install 'stretto[llamacpp]'"


class ModelLoadError(LlamaCppError):
    code = "model_load_failed"
    hint = "check the free memory and the file; n_gpu_layers: 0 keeps the model off the GPU"


class ContextError(LlamaCppError):
    code = "context_failed"
    hint = "lower context_window or n_seq_max; `stretto estimate MODEL` shows what fits"
