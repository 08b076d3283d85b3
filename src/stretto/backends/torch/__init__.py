"""The torch backend: safetensors (or GGUF) models with paged attention, on CUDA with our own Triton kernels.

Beyond the core it imports torch, triton, numpy, safetensors, tokenizers and gguf, and each only when needed.
"""

from __future__ import annotations

from stretto.backends.torch.backend import TorchBackend
from stretto.backends.torch.config import ModelShape, parse_config, read_config

__all__ = ["ModelShape", "TorchBackend", "parse_config", "read_config"]
