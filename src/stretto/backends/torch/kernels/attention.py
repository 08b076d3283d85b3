"""Paged attention on CUDA: which kernel runs for a batch, and how it is cut.

Decided on the host from shapes alone. Decode spans of a mixed batch go to the decode kernel and chunks to the
prefill kernel; in either, programs for the other's spans end at once.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from stretto.backends.torch.kernels.decode import DecodeShape, decode
from stretto.backends.torch.kernels.prefill import PrefillShape, prefill

PROGRAMS_PER_PROCESSOR = 3  # as many decode programs as a multiprocessor has shared memory for
RUN_TOKENS_MIN = 512  # for large batches: shorter runs cost more in joining than they balance
SPLITS_MAX = 128


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    max_query: int,
    decode_only: bool,
    max_context: int | None = None,
    decode_shape: DecodeShape | None = None,
    prefill_shape: PrefillShape | None = None,
) -> Tensor:
    assert k_pages.stride() == v_pages.stride()
    assert q.stride(2) == k_pages.stride(3) == block_tables.stride(1) == 1
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.shape[0]:
        return out
    spans, page_tokens, kv_heads = context_lens.shape[0], k_pages.shape[1], k_pages.shape[2]
    context = min(max_context or 2**31, block_tables.shape[1] * page_tokens)
    shared = (q, k_pages, v_pages, block_tables, query_starts, context_lens, scale, out)
    if max_query > 1 and not decode_only:
        prefill(*shared, shape=prefill_shape or choose_prefill(q))
    if decode_only or spans > 1 or max_query == 1:
        shape = decode_shape or choose_decode(
            spans,
            kv_heads,
            context,
            dim=q.shape[2],
            itemsize=q.element_size(),
            processors=_processors(q.device),
        )
        decode(*shared, mixed=not decode_only, shape=shape)
    return out


def choose_decode(
    spans: int, kv_heads: int, context: int, *, dim: int, itemsize: int, processors: int
) -> DecodeShape:
    """Few spans: as many runs as fill the machine once. Many: only long contexts are cut, for balance."""
    block_n = 64 if dim * itemsize <= 256 else 32
    room = processors * PROGRAMS_PER_PROCESSOR // max(spans * kv_heads, 1)
    tiles = triton.cdiv(context, block_n)
    if room >= 2:
        return DecodeShape(block_n=block_n, splits=max(min(room, tiles, SPLITS_MAX), 1), tiles_min=1)
    tiles_min = RUN_TOKENS_MIN // block_n
    return DecodeShape(
        block_n=block_n, splits=max(min(8, triton.cdiv(tiles, tiles_min)), 1), tiles_min=tiles_min
    )


def choose_prefill(q: Tensor) -> PrefillShape:
    if q.dtype == torch.float32:
        return PrefillShape(block_m=64, block_n=32, warps=4, stages=2)
    return PrefillShape()


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":  # the interpreter
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count
