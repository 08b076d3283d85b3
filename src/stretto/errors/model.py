"""Errors of model names, files, conversions and downloads."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class ModelError(StrettoError):
    code = "model_error"
    http_status = 400


class InvalidModelNameError(ModelError):
    code = "invalid_model_name"
    hint = "name a model as user/repo, user/repo:QUANT, a name from `stretto ls`, or a path to a .gguf file"


class ModelNotFoundError(ModelError):
    code = "model_not_found"
    http_status = 404
    hint = "`stretto ls` lists the models here; `stretto pull user/repo` downloads one"


class ModelFileError(ModelError):
    code = "bad_model_file"
    hint = "the file is damaged or malicious: download it again from a source you trust"


class NotGgufError(ModelFileError):
    code = "not_gguf"
    hint = "give a .gguf file; folders of safetensors are for `serve` and `run`, on torch"


class TruncatedModelError(ModelFileError):
    code = "model_truncated"
    hint = "the download is incomplete: remove the file and pull it again"


class UnsupportedModelError(ModelFileError):
    code = "unsupported_model"
    hint = "convert the model again with a current llama.cpp"


class AdapterNotFoundError(ModelError):
    code = "adapter_not_found"
    http_status = 404
    hint = "`/v1/models` and `stretto show MODEL` list a model's adapters"


class AdapterFileError(ModelError):
    code = "bad_adapter"
    hint = "use an adapter that was made for this model, in the format of its backend"


class ModelRefusedError(ModelError):
    code = "model_refused"
    hint = "llama.cpp cannot load this file: check its source, or update llama-cpp-python"


class ModelTooLargeError(ModelError):
    code = "model_too_large"
    http_status = 507
    hint = "lower context_window or n_seq_max, or raise runtime.memory_budget_bytes"


class ConversionError(ModelError):
    code = "conversion_failed"
    http_status = 500
    hint = "use the model as it is, or convert it with another type"


class DownloadError(ModelError):
    code = "download_failed"
    http_status = 502
    retryable = True
    hint = "check the network and the name, then run the same command again: it resumes"


class DigestMismatchError(DownloadError):
    code = "digest_mismatch"
    hint = "the file was deleted; pull it again"


class DiskFullError(DownloadError):
    code = "disk_full"
    http_status = 507
    retryable = False
    hint = "free some space (`stretto rm`), or choose a smaller quantization"
