"""The new token of a decode row, straight from the QKV product: normalized, rotated, written to its page.

Loads are apart from what is computed: a kernel issues all that do not depend on each other before it needs
the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.norm import rounded
from stretto.backends.torch.kernels.tiles import to_fp8


@dataclass(frozen=True, slots=True)
class FusedInputs:
    """Inputs of a fused call: new keys and values [spans, kv_heads, dim], and how to rotate heads.

    The position of a new token is its context length less one.
    """

    k: Tensor
    v: Tensor
    slot_mapping: Tensor
    cos_sin: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float


@triton.jit
def head_and_pair(base, mask, dims, DIM: tl.constexpr):
    """Heads at `base` [heads, 1], and each element's pair, half a head away: [heads, DIM_PAD] both.

    Pairs are loaded rather than moved between threads.
    """
    half: tl.constexpr = DIM // 2
    pair = tl.where(dims < half, dims + half, dims - half)
    own = tl.load(base + dims[None, :], mask=mask, other=0.0)
    return own, tl.load(base + pair[None, :], mask=mask, other=0.0)


@triton.jit
def rotated(own, other, gain, gain_pair, cos, sin, dims, eps, NORM: tl.constexpr, DIM: tl.constexpr):
    """What `head_and_pair` loaded, normalized if NORM, then rotated; rounded at each step."""
    kind: tl.constexpr = own.dtype
    own, other = own.to(tl.float32), other.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / DIM + eps)[:, None]
        own = rounded(rounded(own * scale, kind) * gain.to(tl.float32)[None, :], kind)
        other = rounded(rounded(other * scale, kind) * gain_pair.to(tl.float32)[None, :], kind)
    cos, sin = rounded(cos, kind)[None, :], rounded(sin, kind)[None, :]
    sign = tl.where(dims < DIM // 2, -1.0, 1.0)[None, :]
    return (rounded(own * cos, kind) + sign * rounded(other * sin, kind)).to(kind)


@triton.jit
def write_token(
    key, value, k_pages, v_pages, slot, kv_head, queries, scale, k_scale, v_scale,
    page_stride, token_stride, head_stride,
    SCALED: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Writes the new key and value to their page; returns (the key's scores, the value)."""
    dims = tl.arange(0, DIM_PAD)
    slot = slot.to(tl.int64)
    place = slot // PAGE * page_stride + slot % PAGE * token_stride + kv_head * head_stride
    write = (dims < DIM)[None, :] & (slot >= 0)
    key = key.to(tl.float32)
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
        return q, q, context_lens, levels, q, q, 0.0
    assert fresh.k.stride() == fresh.v.stride()
    assert (fresh.q_weight is None) == (fresh.k_weight is None)
    return (
        fresh.k,
        fresh.v,
        fresh.slot_mapping,
        fresh.cos_sin,
        q if fresh.q_weight is None else fresh.q_weight,
        q if fresh.k_weight is None else fresh.k_weight,
        fresh.eps,
    )
