"""Per-head norm, rotary embedding and the write of keys and values to their pages, in one launch.

A program handles one row and a few heads: first the blocks of query heads, then those of key-value heads. A
head is kept as two halves, so that the rotation moves nothing between threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.tiles import to_fp8


@triton.jit
def _normed(first, second, weight, half, inside, eps, HALF: tl.constexpr, kind: tl.constexpr):
    """Both halves of some heads [heads, HALF], RMS-normalized together."""
    squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
    gain_first = tl.load(weight + half, mask=inside, other=0.0).to(tl.float32)[None, :]
    gain_second = tl.load(weight + HALF + half, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = rounded(rounded(first * scale, kind) * gain_first, kind)
    second = rounded(rounded(second * scale, kind) * gain_second, kind)
    return first, second


@triton.jit
def _rotated(first, second, cos, sin, kind: tl.constexpr):
    """Both halves rotated, every product and sum rounded."""
    left = rounded(first * cos, kind) - rounded(second * sin, kind)
    right = rounded(second * cos, kind) + rounded(first * sin, kind)
    return left.to(kind), right.to(kind)


@triton.jit
def _rotary_write(
    q,
    k,
    v,
    out,
    positions,
    cos_sin,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    slot_mapping,
    q_weight,
    k_weight,
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    page_stride,
    token_stride,
    head_stride,
    page_tokens,
    heads,
    kv_heads,
    eps,
    SCALED: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    query_blocks = tl.cdiv(heads, HEADS_BLOCK)
    half = tl.arange(0, HALF_PAD)
    inside = half < HALF
    position = tl.load(positions + row).to(tl.int64)
    kind: tl.constexpr = q.dtype.element_ty
    angle = cos_sin + position * 2 * HALF + half
    cos = rounded(tl.load(angle, mask=inside, other=0.0), kind)[None, :]
    sin = rounded(tl.load(angle + HALF, mask=inside, other=0.0), kind)[None, :]
    if block < query_blocks:
        head = (block * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK))[:, None]
        mask = (head < heads) & inside[None, :]
        source = q + row * q_row_stride + head * q_head_stride + half[None, :]
        first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
        if Q_NORM:
            first, second = _normed(first, second, q_weight, half, inside, eps, HALF, kind)
        target = out + (row * heads + head) * (2 * HALF) + half[None, :]
        left, right = _rotated(first, second, cos, sin, kind)
        tl.store(target, left, mask=mask)
        tl.store(target + HALF, right, mask=mask)
    else:
        slot = tl.load(slot_mapping + row).to(tl.int64)
        if slot >= 0:
            head = ((block - query_blocks) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK))[:, None]
            mask = (head < kv_heads) & inside[None, :]
            source = k + row * k_row_stride + head * k_head_stride + half[None, :]
            first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
            values = v + row * v_row_stride + head * v_head_stride + half[None, :]
            value_first = tl.load(values, mask=mask, other=0.0)
            value_second = tl.load(values + HALF, mask=mask, other=0.0)
            if K_NORM:
                first, second = _normed(first, second, k_weight, half, inside, eps, HALF, kind)
            place = slot // page_tokens * page_stride + slot % page_tokens * token_stride
            target = place + head * head_stride + half[None, :]
            left, right = _rotated(first, second, cos, sin, kind)
            if SCALED:
                k_scale = tl.load(k_scales + head, mask=head < kv_heads, other=1.0)
                v_scale = tl.load(v_scales + head, mask=head < kv_heads, other=1.0)
                tl.store(k_pages + target, to_fp8(left.to(tl.float32) / k_scale), mask=mask)
                tl.store(k_pages + target + HALF, to_fp8(right.to(tl.float32) / k_scale), mask=mask)
                tl.store(v_pages + target, to_fp8(value_first.to(tl.float32) / v_scale), mask=mask)
                tl.store(v_pages + target + HALF, to_fp8(value_second.to(tl.float32) / v_scale), mask=mask)
            else:
                tl.store(k_pages + target, left.to(k_pages.dtype.element_ty), mask=mask)
                tl.store(k_pages + target + HALF, right.to(k_pages.dtype.element_ty), mask=mask)
                tl.store(v_pages + target, value_first.to(v_pages.dtype.element_ty), mask=mask)
                tl.store(v_pages + target + HALF, value_second.to(v_pages.dtype.element_ty), mask=mask)


def rotary_write(
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
    scales: tuple[Tensor, Tensor] | None = None,
    heads_block: int = 4,
    warps: int = 2,
) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    assert k_pages.stride() == v_pages.stride()
    assert q.stride(2) == k.stride(2) == v.stride(2) == k_pages.stride(3) == 1
    assert cos_sin.is_contiguous()
    assert cos_sin.shape[1] == dim
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    block = min(heads_block, triton.next_power_of_2(max(kv_heads, 1)))
    if rows:
        _rotary_write[(rows, triton.cdiv(heads, block) + triton.cdiv(kv_heads, block))](
            q,
            k,
            v,
            out,
            positions,
            cos_sin,
            k_pages,
            v_pages,
            *((out, out) if scales is None else scales),
            slot_mapping,
            q if q_weight is None else q_weight,
            k if k_weight is None else k_weight,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            *k_pages.stride()[:3],
            k_pages.shape[1],
            heads,
            kv_heads,
            eps,
            SCALED=scales is not None,
            Q_NORM=q_weight is not None,
            K_NORM=k_weight is not None,
            HALF=dim // 2,
            HALF_PAD=triton.next_power_of_2(dim // 2),
            HEADS_BLOCK=block,
            num_warps=warps,
        )
    return out
