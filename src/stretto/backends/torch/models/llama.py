"""Llama (and SmolLM2, and everything that calls itself LlamaForCausalLM): attention and an MLP."""

from __future__ import annotations

from stretto.backends.torch.config import ModelShape
from stretto.backends.torch.models.layers import DecoderLayer, Mlp, Place
from stretto.backends.torch.weights import WeightSource


def llama_layer(source: WeightSource, prefix: str, shape: ModelShape, place: Place) -> DecoderLayer:
    return DecoderLayer(source, prefix, shape, place, Mlp(source, f"{prefix}.mlp", shape, place))
