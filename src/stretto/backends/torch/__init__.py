"""The torch backend: safetensors (or GGUF) models with paged attention, on CUDA with our own Triton kernels.

Apart from the core it imports torch, triton, numpy, safetensors, tokenizers and gguf, each only when needed:
a process that only reads a model's tokenizer does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stretto.backends.torch.config import TransformerShape, parse_config, read_config

if TYPE_CHECKING:
    from stretto.backends.torch.backend import TorchBackend

__all__ = ["TorchBackend", "TransformerShape", "parse_config", "read_config"]


def __getattr__(name: str) -> Any:
    if name == "TorchBackend":
        from stretto.backends.torch.backend import TorchBackend

        return TorchBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
