"""The new token of a decode row, straight from the QKV product: normalized, rotated, written to its page."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.tiles import to_fp8


@dataclass(frozen=True, slots=True)
class FusedInputs:
    """Inputs of a fused call: new keys and values [spans, kv_heads, dim], and how to rotate heads."""

    k: Tensor
    v: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cos_sin: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float


@triton.jit
def rotated_heads(base, mask, dims, angles, weight, eps, NORM: tl.constexpr, DIM: tl.constexpr):
    """Heads at `base` [heads, 1], normalized if NORM, then rotated: [heads, DIM_PAD], rounded at each step.

    Every element needs its pair, half a head away, which is loaded rather than moved between threads.
    """
    kind: tl.constexpr = base.dtype.element_ty
    half: tl.constexpr = DIM // 2
    pair = tl.where(dims < half, dims + half, dims - half)
    own = tl.load(base + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(base + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / DIM + eps)[:, None]
        gain = tl.load(weight + dims, mask=dims < DIM, other=0.0).to(tl.float32)[None, :]
        gain_pair = tl.load(weight + pair, mask=dims < DIM, other=0.0).to(tl.float32)[None, :]
        own = rounded(rounded(own * scale, kind) * gain, kind)
        other = rounded(rounded(other * scale, kind) * gain_pair, kind)
    cos = rounded(tl.load(angles + dims % half, mask=dims < DIM, other=0.0), kind)[None, :]
    sin = rounded(tl.load(angles + half + dims % half, mask=dims < DIM, other=0.0), kind)[None, :]
    sign = tl.where(dims < half, -1.0, 1.0)[None, :]
    return (rounded(own * cos, kind) + sign * rounded(other * sin, kind)).to(kind)


@triton.jit
def fresh_token(
    k_new, v_new, k_pages, v_pages, slot_mapping, row, kv_head, queries, angles, k_weight, eps, scale,
    k_scale, v_scale, new_row_stride, new_head_stride, page_stride, token_stride, head_stride,
    SCALED: tl.constexpr, NORM: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Writes the new key and value to their page; returns (the key's scores, the value)."""
    dims = tl.arange(0, DIM_PAD)
    inside = (dims < DIM)[None, :]
    fresh = row.to(tl.int64) * new_row_stride + kv_head * new_head_stride
    one = tl.zeros([1, 1], tl.int32)
    key = rotated_heads(k_new + fresh + one, inside, dims, angles, k_weight, eps, NORM, DIM)
    value = tl.load(v_new + fresh + one + dims[None, :], mask=inside, other=0.0)
    slot = tl.load(slot_mapping + row).to(tl.int64)
    place = slot // PAGE * page_stride + slot % PAGE * token_stride + kv_head * head_stride
    write = inside & (slot >= 0)
    key, value = key.to(tl.float32), value.to(tl.float32)
    if SCALED:  # attends to what later tokens will read; the value stays in units of its scale
        small_key, small_value = to_fp8(key / k_scale), to_fp8(value / v_scale)
        key, value = small_key.to(tl.float32) * k_scale, small_value.to(tl.float32)
        tl.store(k_pages + place + dims[None, :], small_key, mask=write)
        tl.store(v_pages + place + dims[None, :], small_value, mask=write)
    else:
        tl.store(k_pages + place + dims[None, :], key.to(k_pages.dtype.element_ty), mask=write)
        tl.store(v_pages + place + dims[None, :], value.to(v_pages.dtype.element_ty), mask=write)
    return tl.sum(queries.to(tl.float32) * key, axis=1) * scale, value


def fresh_arguments(
    fresh: FusedInputs | None, q: Tensor, context_lens: Tensor, levels: Tensor
) -> tuple[object, ...]:
    """Arguments `k_new` to `eps`. Absent ones are never read: any tensor of the same type can be passed."""
    if fresh is None:
        return q, q, context_lens, context_lens, levels, q, q, 0.0
    assert fresh.k.stride() == fresh.v.stride()
    assert (fresh.q_weight is None) == (fresh.k_weight is None)
    return (
        fresh.k,
        fresh.v,
        fresh.positions,
        fresh.slot_mapping,
        fresh.cos_sin,
        q if fresh.q_weight is None else fresh.q_weight,
        q if fresh.k_weight is None else fresh.k_weight,
        fresh.eps,
    )
