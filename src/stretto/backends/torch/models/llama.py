"""Llama (and SmolLM2, and every other LlamaForCausalLM): attention and an MLP."""

from __future__ import annotations

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.layers import DecoderLayer, Mlp, Placement
from stretto.backends.torch.weights import WeightSource


def llama_layer(source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> DecoderLayer:
    return DecoderLayer(source, prefix, shape, place, Mlp(source, f"{prefix}.mlp", shape, place))
