"""Checks attention over FP8 pages and FP8 products against float64; for kernels.py.

The reference reads the same FP8 numbers and scales, so only the kernel's own rounding is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from attention_checks import paged
from kernel_checks import Draw
from torch import Tensor

from stretto.backends.torch.kernels import attention, rotary
from stretto.backends.torch.kernels.fresh_token import FusedInputs
from stretto.backends.torch.ops import fp8_linear
from stretto.backends.torch.ops.activation import silu_mul_reference
from stretto.backends.torch.ops.attention import paged_attention_reference
from stretto.backends.torch.ops.fp8 import Fp8Matrix, KvScales, quantize_heads
from stretto.backends.torch.ops.norm import add_rms_norm_reference
from stretto.backends.torch.ops.rotary import rotary_write_reference

Answers = list[tuple[Tensor, Tensor, Tensor]]
SHAPES = [(32, 2, 2, 64), (64, 1, 4, 128), (16, 1, 8, 128), (24, 1, 5, 128)]  # page, kv_heads, group, dim


def small_pages(pages: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 pages and scales [kv_heads], different for each head; NaN stays NaN."""
    scales = torch.linspace(0.005, 0.02, pages.shape[2], device=pages.device)
    return quantize_heads(pages, scales), scales


def attention_case(
    draw: Draw, spans: list[tuple[int, int]], *, page: int, kv_heads: int, group: int, dim: int
) -> Answers:
    batch = paged(draw, spans, page=page, kv_heads=kv_heads, group=group, dim=dim, padding=1)
    (keys, k_scales), (values, v_scales) = small_pages(batch.k_pages), small_pages(batch.v_pages)
    scales = KvScales(k_scales, v_scales)
    longest = max(count for count, _ in spans)
    tail = (batch.block_tables, batch.query_starts, batch.context_lens, batch.scale)
    got = attention.paged_attention(
        batch.q, keys, values, *tail, max_query=longest, decode_only=longest == 1, scales=scales
    )
    plain = paged_attention_reference(batch.q, keys, values, *tail, scales=scales)
    wide = KvScales(k_scales.double(), v_scales.double())
    exact = paged_attention_reference(batch.q.double(), keys, values, *tail, scales=wide)
    return [(got, plain, exact)]


def fused_case(draw: Draw, contexts: list[int], *, page: int, kv_heads: int, group: int, dim: int) -> Answers:
    """Fused decode against writing, then attending; and the pages that both write."""
    batch = paged(draw, [(1, c) for c in contexts], page=page, kv_heads=kv_heads, group=group, dim=dim)
    (keys, k_scales), (values, v_scales) = small_pages(batch.k_pages), small_pages(batch.v_pages)
    rows, heads = len(contexts), kv_heads * group
    last = batch.context_lens.long() - 1
    pages = batch.block_tables.gather(1, (last // page).unsqueeze(1)).squeeze(1).long()
    slots = pages * page + last % page
    product = draw.normal(rows, heads + 2 * kv_heads, dim)
    q, k, v = product.split([heads, kv_heads, kv_heads], dim=1)
    weight = draw.uniform(0.5, 1.5, dim)
    angles = torch.arange(max(contexts), device=draw.device)[:, None] * torch.rand(dim // 2).to(draw.device)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1).float().contiguous()

    scales = KvScales(k_scales, v_scales)

    def copies() -> tuple[Tensor, Tensor]:
        return keys.clone(), values.clone()

    own_k, own_v = copies()
    fresh = FusedInputs(k, v, slots, cos_sin, weight, weight, 1e-6)
    tables = (batch.block_tables, batch.context_lens)
    got = attention.rotary_attention(q, own_k, own_v, *tables, batch.scale, fresh, scales=scales)
    apart_k, apart_v = copies()
    where = (last, cos_sin, apart_k, apart_v, slots)
    rotary.rotary_write(q, k, v, *where, q_weight=weight, k_weight=weight, eps=1e-6, scales=scales)
    page_of, offset = slots // page, slots % page
    for ours, theirs in ((own_k, apart_k), (own_v, apart_v)):
        same = ours.view(torch.uint8)[page_of, offset] == theirs.view(torch.uint8)[page_of, offset]
        assert same.float().mean() > 0.97, "the kernels wrote different pages"  # of K an ulp before FP8
    answers = []
    for wide in (draw.dtype, torch.float64):
        ref_k, ref_v = copies()
        cast = [one.to(wide) for one in (q, k, v)]
        turned = rotary_write_reference(
            *cast, last, cos_sin, ref_k, ref_v, slots,
            q_weight=weight.to(wide), k_weight=weight.to(wide), eps=1e-6, scales=scales,
        )  # fmt: skip
        tail = (batch.block_tables, batch.query_starts, batch.context_lens, batch.scale)
        answers.append(paged_attention_reference(turned, ref_k, ref_v, *tail, scales=scales))
    return [(got, answers[0], answers[1])]


def mlp_case(draw: Draw, rows: int, hidden: int, inner: int) -> Answers:
    """Norm, gate and up, down and the residual; and a product alone."""
    x, residual, gain = draw.normal(rows, hidden), draw.normal(rows, hidden), draw.uniform(0.5, 1.5, hidden)
    both = Fp8Matrix.of(draw.normal(2 * inner, hidden) * hidden**-0.5)
    down = Fp8Matrix.of(draw.normal(hidden, inner) * inner**-0.5)
    middle, total = fp8_linear.norm_gated(x, residual, gain, 1e-6, both)
    out, more = fp8_linear.linear_add(middle, total, down)
    answers = [(out if more is None else out + more,), (fp8_linear.linear(x, both),)]
    for wide in (draw.dtype, torch.float64):
        normed, total = add_rms_norm_reference(x.to(wide), residual.to(wide), gain.to(wide), 1e-6)
        own = silu_mul_reference(fp8_linear.linear_reference(normed, both))
        answers[0] += (fp8_linear.linear_reference(own, down) + total,)
        answers[1] += (fp8_linear.linear_reference(x.to(wide), both),)
    return answers


def cases(*, tiny: bool) -> Iterator[tuple[str, Callable[[Draw], Answers]]]:
    far, batch = (200, 2) if tiny else (5000, 200)
    for page, kv_heads, group, dim in SHAPES:
        sizes = {"page": page, "kv_heads": kv_heads if tiny else 8, "group": group, "dim": dim}

        def decode(draw: Draw, page: int = page, sizes: dict[str, int] = sizes) -> Answers:
            spans = [(1, c) for c in (far, 1, page - 1, page, page + 1)]
            return attention_case(draw, spans + [(1, draw.integer(1, 700)) for _ in range(batch)], **sizes)

        def mixed(draw: Draw, page: int = page, sizes: dict[str, int] = sizes) -> Answers:
            spans = [(1, page + 1), (page, page), (page + 1, 3 * page), (2, far), (40, 40 + page), (1, 1)]
            return attention_case(draw, spans, **sizes)

        def fused(draw: Draw, page: int = page, sizes: dict[str, int] = sizes) -> Answers:
            contexts = [far, 1, page - 1, page, page + 1, 64, 65]
            return fused_case(draw, contexts + [draw.integer(1, 700) for _ in range(batch)], **sizes)

        label = f"page {page} group {group} dim {dim}"
        yield f"fp8 decode {label}", decode
        yield f"fp8 mixed {label}", mixed
        if not tiny:  # the interpreter truncates to FP8
            yield f"fp8 fused {label}", fused
    for rows in () if tiny else (1, 7, 16, 100, 600):
        yield f"fp8 mlp {rows} rows", lambda draw, r=rows: mlp_case(draw, r, 1024, 2816)
