"""Errors of the code that computes: forward passes, llama.cpp, torch."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class BackendError(StrettoError):
    code = "backend_error"
    retryable = True


class PassFailedError(BackendError):
    code = "pass_failed"
    hint = "retry; if it happens again, check the model file and the free memory"


class BadOutputError(BackendError):
    code = "bad_output"
    hint = "the model produced no valid token; check the model file and the sampling parameters"


class OutOfMemoryError(BackendError):
    code = "out_of_memory"
    http_status = 503
    hint = "shorten the prompt, or give the KV cache more memory"


class TorchError(BackendError):
    code = "torch_error"
    hint = "restart the worker; the log has the CUDA error"


class TorchMissingError(BackendError):
    code = "torch_missing"
    retryable = False
    hint = "pip install 'stretto[torch]'"


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


class DeterminismError(BackendError):
    code = "not_deterministic"
    retryable = False
    hint = "set deterministic: auto"
