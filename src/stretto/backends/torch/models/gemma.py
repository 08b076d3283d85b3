"""Gemma 3: norms before and after attention and MLP, GELU, sliding windows in five of six layers.

The shape holds the rest: the scale of embeddings and of queries, and the rotary base of windowed layers.
"""

from __future__ import annotations

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.layers import DecoderLayer, Mlp, Placement, make_norm
from stretto.backends.torch.weights import WeightSource


def gemma_layer(source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> DecoderLayer:
    after = make_norm(source, f"{prefix}.post_feedforward_layernorm", shape, place)
    return DecoderLayer(
        source,
        prefix,
        shape,
        place,
        Mlp(source, f"{prefix}.mlp", shape, place, after=after),
        middle_norm="pre_feedforward_layernorm",
        after=make_norm(source, f"{prefix}.post_attention_layernorm", shape, place),
    )
