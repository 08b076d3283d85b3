"""Checks linear layers of a few rows, with fused operations, against float64; for kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from kernel_checks import Draw
from torch import Tensor

from stretto.backends.torch.kernels import linear, skinny
from stretto.backends.torch.ops.activation import silu_mul_reference
from stretto.backends.torch.ops.linear import norm_linear_reference


def linear_case(
    draw: Draw, rows: int, width: int, outs: int, *, kind: str, biased: bool
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Products of a few rows with fused operations, given by `kind`. Each row must equal its result alone."""
    x, residual = draw.normal(rows, width + 8)[:, :width], draw.normal(rows, width)
    gain, weight = draw.uniform(0.5, 1.5, width), draw.normal(outs, width) * width**-0.5
    bias, after = draw.normal(outs) if biased else None, draw.normal(rows, outs)
    kept = tuple(t.clone() for t in (x, residual, after))

    def run(ours: bool, cast):  # type: ignore[no-untyped-def]
        a, r, g, w, f = (cast(t) for t in (x, residual, gain, weight, after))
        b = None if bias is None else cast(bias)
        if kind in ("norm", "gated"):
            call = linear.norm_linear if ours else norm_linear_reference
            first = call(a, r, g, 1e-6, w, b, gated=kind == "gated")
            return *first, call(a, None, g, 1e-6, w, b, gated=kind == "gated")[0]
        if kind == "silu":
            product = None if ours else torch.nn.functional.linear(a, w)
            return (skinny.linear(a, w, gated=True) if product is None else silu_mul_reference(product),)
        if not ours:
            return (torch.nn.functional.linear(a, w, b) + f,)
        if rows > 4:
            return skinny.linear(a, w, b, f), skinny.linear(a, w, b, f)
        return tuple(linear.linear(a, w, b, f, long=long) for long in (False, True))

    got = run(True, lambda t: t.to(draw.dtype))
    x[1:], residual[1:], after[1:] = x[:-1].clone(), torch.nan, torch.inf
    for before, now in zip(got, run(True, lambda t: t.to(draw.dtype)), strict=True):
        assert torch.equal(before[:1], now[:1]), "a row depends on other rows"
    x, residual, after = (t.clone() for t in kept)
    plain, exact = run(False, lambda t: t.to(draw.dtype)), run(False, lambda t: t.double())
    if len(plain) < len(got):
        plain, exact = plain * 2, exact * 2
    return list(zip(got, plain, exact, strict=True))


def linear_cases(
    *, tiny: bool
) -> Iterator[tuple[str, Callable[[Draw], list[tuple[Tensor, Tensor, Tensor]]]]]:
    sizes = [(64, 24), (96, 18)] if tiny else [(1024, 4096), (3072, 1024), (4096, 1536), (896, 1152)]
    for (width, outs), rows, kind in product(
        sizes, (1, 3, 7) if tiny else (1, 2, 4, 5, 16), ("norm", "gated", "add", "silu")
    ):
        if (rows > 4) != (kind == "silu") and kind != "add":
            continue
        yield (
            f"linear {kind} {rows}×{width}→{outs}",
            lambda draw, r=rows, w=width, o=outs, k=kind: linear_case(
                draw, r, w, o, kind=k, biased=k not in ("gated", "silu") and w != 1024
            ),
        )
