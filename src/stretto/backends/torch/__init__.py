"""The torch backend: safetensors (or GGUF) models with paged attention, on CUDA with our own Triton kernels.

Apart from the core it imports torch, triton, numpy, safetensors, tokenizers and gguf, each only when needed.
"""

from __future__ import annotations

from stretto.backends.torch.backend import TorchBackend
from stretto.backends.torch.config import TransformerShape, parse_config, read_config

__all__ = ["TorchBackend", "TransformerShape", "parse_config", "read_config"]
