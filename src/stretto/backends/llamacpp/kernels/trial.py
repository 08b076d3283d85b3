"""One attention through ggml, as a model computes it: what our kernels are verified with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stretto.backends.llamacpp.native.ggml import F16, F32, Ggml


class AttentionInputs(NamedTuple):
    """Arrays of (sequence, head, row or cell, number); the mask is the same for all heads."""

    query: np.ndarray[Any, Any]
    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any] | None


def attention(ggml: Ggml, given: AttentionInputs) -> bytes:
    """Numbers of (sequence, row, head, number)."""
    context = ggml.context()
    tensors = [
        ggml.tensor(context, F32 if at == 0 else F16, value.shape[::-1]) if value is not None else None
        for at, value in enumerate(given)
    ]
    scale = given.query.shape[-1] ** -0.5
    result = ggml.flash_attn_ext(context, *tensors, scale, 0.0, 0.0)
    filled = {
        tensor: value.tobytes()
        for tensor, value in zip(tensors, given, strict=True)
        if tensor is not None and value is not None
    }
    return ggml.computed(context, filled, result)
