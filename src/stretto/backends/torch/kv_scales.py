"""Scales of FP8 keys and values, measured when a model is loaded.

A pass over random tokens with ordinary pages shows how large the keys and values of each head are. FP8 covers
eighteen binary orders of magnitude, so a wide margin costs no accuracy (`ops.fp8.KV_ROOM`).
"""

from __future__ import annotations

import torch

from stretto.backends.torch.models import CausalModel, Step
from stretto.backends.torch.ops import KvScales
from stretto.backends.torch.ops.fp8 import head_scales
from stretto.backends.torch.pool import KvPool

TOKENS = 256
SEED = 0


@torch.inference_mode()
def measure_scales(model: CausalModel, *, window: int) -> list[KvScales]:
    """One pair for each layer."""
    device, count = model.place.device, min(TOKENS, window)
    pool = KvPool(model.shape, model.place, pages=1, page_tokens=count)
    tokens = torch.randint(model.shape.vocab, (count,), generator=torch.Generator().manual_seed(SEED))
    if model.shape.bos is not None:
        tokens[0] = model.shape.bos  # often with unusually large keys
    rows = torch.arange(count, dtype=torch.int32, device=device)
    step = Step(
        positions=rows,
        slot_mapping=rows.long(),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device=device),
        query_starts=torch.tensor([0, count], dtype=torch.int32, device=device),
        context_lens=torch.tensor([count], dtype=torch.int32, device=device),
        max_query=count,
        decode_only=False,
    )
    model.logits(tokens.to(device), step, pool.layers, rows[-1:])
    return [KvScales(head_scales(layer.k), head_scales(layer.v)) for layer in pool.layers]
