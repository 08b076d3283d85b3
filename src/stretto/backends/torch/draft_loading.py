"""Loads a draft model onto the device of its target, if it has the same vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch

from stretto.backends.drafting.vocabulary import check_sizes, check_tokens
from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.model_source import ModelSource, check_all_read, text_of, weights_of
from stretto.backends.torch.models import CausalModel, build
from stretto.backends.torch.tokenizer import HfTokenizer


@torch.inference_mode()
def load_draft(
    source: ModelSource,
    *,
    target: TransformerShape,
    words: HfTokenizer | None,
    device: torch.device,
    window: int,
    dtype: str,
    quantization: str,
    load_format: str,
) -> CausalModel:
    """`words`: the target's. Raises a StrettoError if the two models do not fit."""
    shape, weights, place = weights_of(
        source, device, dtype=dtype, quantization=quantization, load_format=load_format
    )
    name = source.name if isinstance(source, Path) else "this shape"
    own, _ = text_of(source, weights, shape)
    if words is not None and own is not None:
        check_tokens(words, own, name)
    else:
        check_sizes(target.vocab, shape.vocab, name)
    model = build(weights, shape, place, window=min(window, shape.context_max))
    check_all_read(weights)
    weights.close()
    return model
