"""From the fused QKV product to the cache: per-head norm, rotary embedding, write to pages.

The rotation pairs element i with i + dim/2. `cos_sin` is [positions, dim] in float32: the cosines of the
dim/2 angles of a position, then their sines. They are rounded to the dtype of the heads, and so is every
product and sum: transformers' models round at the same points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.backends.torch.ops.fp8 import KvScales, quantize_heads
from stretto.backends.torch.ops.norm import rms_norm_reference


def rotary_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slot_mapping: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    scales: KvScales | None = None,
) -> Tensor:
    """Writes k and v of each row to their pages and returns the rotated queries, contiguous.

    q [rows, heads, dim]; k, v [rows, kv_heads, dim], possibly views of one product; pages [pages,
    page_tokens, kv_heads, dim]; slot_mapping [rows] = page · page_tokens + offset, -1 for a padding row,
    whose position must still be valid. With weights, heads are RMS-normalized first. FP8 pages have scales.
    """
    where = (q, k, v, positions, cos_sin, k_pages, v_pages, slot_mapping)
    if q.is_cuda:
        from stretto.backends.torch.kernels import rotary as kernel

        return kernel.rotary_write(*where, q_weight=q_weight, k_weight=k_weight, eps=eps, scales=scales)
    return rotary_write_reference(*where, q_weight=q_weight, k_weight=k_weight, eps=eps, scales=scales)


def rotary_write_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slot_mapping: Tensor,
    *,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    scales: KvScales | None = None,
) -> Tensor:
    if q_weight is not None:
        q = rms_norm_reference(q, q_weight, eps)
    if k_weight is not None:
        k = rms_norm_reference(k, k_weight, eps)
    angles = cos_sin[positions.long()]
    rows = (slot_mapping >= 0).nonzero().squeeze(1)
    page, offset = slot_mapping[rows] // k_pages.shape[1], slot_mapping[rows] % k_pages.shape[1]
    keys, values = _rotate(k, angles)[rows], v[rows]
    if scales is None:
        k_pages[page, offset], v_pages[page, offset] = keys.to(k_pages.dtype), values.to(v_pages.dtype)
    else:
        for new, pages, own in ((keys, k_pages, scales.k), (values, v_pages, scales.v)):
            small = quantize_heads(new, own).view(torch.uint8)  # no indexing of FP8 on a CPU
            pages.view(torch.uint8)[page, offset] = small
    return _rotate(q, angles)


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.to(x.dtype).unsqueeze(1).chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
