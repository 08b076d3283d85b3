"""Causal attention over paged keys and values, for decode rows and prefill chunks in one call.

A span is a run of rows of one sequence; its last row is the sequence's last token. Spans of one row read the
whole context (decode); longer ones are prefill chunks, whose prefix may already be cached. On CUDA nothing
reads device memory from the host, so that a call can be captured in a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.backends.torch.ops.fp8 import KvScales, dequantize_heads
from stretto.backends.torch.ops.rotary import rotary_write
from stretto.backends.torch.work_list import DecodeWork


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
    scales: KvScales | None = None,
    max_context: int | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
    work: DecodeWork | None = None,
) -> Tensor:
    """Attention output of each row of `q` [rows, heads, dim], in the same shape.

    block_tables int32 [spans, pages_max], query_starts int32 [spans + 1], context_lens int32 [spans]: tokens
    including this chunk, 0 for a padding span, whose output is undefined. `max_query` and `max_context` bound
    the spans (default: the size of the block tables); `decode_only`: every span is one row, and row i is span
    i. `scales`: of FP8 pages. `window`: a row attends to so many tokens up to itself, 0 for all. `sinks`
    [heads]: a logit that takes part in the softmax of each row and has no value. `work`: of
    decode spans, see `decode_work`.
    """
    if q.is_cuda:
        from stretto.backends.torch.kernels import attention as kernel

        return kernel.paged_attention(
            q,
            k_pages,
            v_pages,
            block_tables,
            query_starts,
            context_lens,
            scale,
            max_query=max_query,
            decode_only=decode_only,
            scales=scales,
            max_context=max_context,
            window=window,
            sinks=sinks,
            work=work,
        )
    tail = (block_tables, query_starts, context_lens, scale)
    return paged_attention_reference(q, k_pages, v_pages, *tail, scales=scales, window=window, sinks=sinks)


def rotary_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    max_query: int,
    decode_only: bool,
    write_first: bool = False,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    scales: KvScales | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
    work: DecodeWork | None = None,
) -> Tensor:
    """`rotary_write`, then `paged_attention`; on CUDA one launch if every span is one row.

    Rows of `decode_only` are at the last position of their context. `write_first`: not in one launch, because
    rows read the keys and values of other rows.
    """
    if q.is_cuda and decode_only and not write_first and (q_weight is None) == (k_weight is None):
        from stretto.backends.torch.kernels import attention as kernel
        from stretto.backends.torch.kernels.fresh_token import FusedInputs

        fresh = FusedInputs(k, v, slot_mapping, cos_sin, q_weight, k_weight, eps)
        held = (k_pages, v_pages, block_tables, context_lens)
        return kernel.rotary_attention(
            q, *held, scale, fresh, scales=scales, window=window, sinks=sinks, work=work
        )
    where = (q, k, v, positions, cos_sin, k_pages, v_pages, slot_mapping)
    q = rotary_write(*where, q_weight, k_weight, eps, scales)
    return paged_attention(
        q,
        k_pages,
        v_pages,
        block_tables,
        query_starts,
        context_lens,
        scale,
        max_query=max_query,
        decode_only=decode_only,
        scales=scales,
        window=window,
        sinks=sinks,
        work=work,
    )


def paged_attention_reference(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    scales: KvScales | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """One span after another, softmax in float32 or wider; padding gives zeros."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts, lengths = query_starts.tolist(), context_lens.tolist()
    for span, length in enumerate(lengths):
        start, end = starts[span], starts[span + 1]
        if length > 0 and end > start:
            pages = block_tables[span, : -(-length // k_pages.shape[1])].long()
            keys, values = k_pages[pages], v_pages[pages]
            if scales is not None:
                keys = dequantize_heads(keys, scales.k, q.dtype)
                values = dequantize_heads(values, scales.v, q.dtype)
            keys, values = keys.flatten(0, 1)[:length], values.flatten(0, 1)[:length]
            out[start:end] = _attend(q[start:end], keys, values, scale, window, sinks)
    return out


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int, sinks: Tensor | None
) -> Tensor:
    """`q` [rows, heads, dim] are the last rows of a context `keys` [tokens, kv_heads, dim]."""
    rows, heads, _ = q.shape
    tokens, kv_heads, _ = keys.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    grouped = q.transpose(0, 1).reshape(kv_heads, heads // kv_heads, rows, -1)
    scores = grouped.to(wide) @ keys.to(wide).permute(1, 2, 0).unsqueeze(1) * scale
    places = torch.arange(tokens, device=q.device)
    own = places[tokens - rows :].unsqueeze(1)
    hidden = places > own
    if window:
        hidden |= places <= own - window
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.to(wide).view(kv_heads, -1, 1, 1).expand(-1, -1, rows, 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)[..., :tokens].to(q.dtype)
    mixed = weights @ values.transpose(0, 1).unsqueeze(1)
    return mixed.reshape(heads, rows, -1).transpose(0, 1)
