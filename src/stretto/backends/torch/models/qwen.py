"""Qwen2 (biases on Q, K, V) and Qwen3 (norms on Q and K): the shape tells which; the layer is Llama's."""

from __future__ import annotations

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.layers import DecoderLayer, Placement
from stretto.backends.torch.models.llama import llama_layer
from stretto.backends.torch.weights import WeightSource
from stretto.errors import ModelFileError


def qwen_layer(source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> DecoderLayer:
    if not shape.qkv_bias and not shape.qk_norm:
        raise ModelFileError("a Qwen model has biases (2) or norms (3) on Q and K, this one has neither")
    return llama_layer(source, prefix, shape, place)
