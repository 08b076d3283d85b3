"""Checks every kernel against float64, on ragged shapes with NaN in unused memory; for kernels.py.

A case gives the output of the kernel, of the plain torch reference in the same dtype, and of the reference in
float64. It passes if the kernel's error, overall and in the worst row, is at most twice the reference's. The
cases call the kernel modules directly, so that small ones also run on Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.backends.torch.kernels import activation, experts, norm, rotary
from stretto.backends.torch.ops.activation import gelu_mul_reference, silu_mul_reference
from stretto.backends.torch.ops.experts import moe_experts_reference, route
from stretto.backends.torch.ops.norm import add_rms_norm_reference, rms_norm_reference
from stretto.backends.torch.ops.rotary import rotary_write_reference

RATIO_MAX = 2.0
FLOOR = 1e-6  # absolute tolerance for rounding if the reference is exact
Case = Callable[[], "list[tuple[Tensor, Tensor, Tensor]]"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    error: float
    error_reference: float
    passed: bool


def judge(name: str, answers: list[tuple[Tensor, Tensor, Tensor]]) -> CheckResult:
    """Triples of (kernel, reference, float64); the worst one decides."""
    worst = CheckResult(name, 0.0, 0.0, True)
    for got, plain, exact in answers:
        for error in (_whole, _worst_row):
            ours, theirs = error(got, exact), error(plain, exact)
            passed = ours <= RATIO_MAX * theirs + FLOOR  # NaN never passes
            if not passed or (worst.passed and ours > worst.error):
                worst = CheckResult(name, ours, theirs, passed and worst.passed)
    return worst


def _whole(got: Tensor, exact: Tensor) -> float:
    return ((got.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def _worst_row(got: Tensor, exact: Tensor) -> float:
    got, exact = got.double().flatten(0, -2), exact.flatten(0, -2)
    return ((got - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-30)).max().item()


class Draw:
    """Fresh random tensors for a case."""

    def __init__(self, seed: int, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(seed)
        self._host = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        share = torch.rand(shape, generator=self._generator, device=self.device)
        return (low + (high - low) * share).to(self.dtype)

    def integer(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(torch.randint(low, high + 1, (1,), generator=self._host).item())

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._host)

    def poison(self, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)


# ── the rest of a layer ─────────────────────────────────────────────────────────────────────────


def norm_case(draw: Draw, rows: int, width: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    wide = draw.normal(rows, width + 64) * 3
    x, residual, weight = wide[:, 8 : width + 8], draw.normal(rows, width), draw.uniform(0.5, 1.5, width)
    got, total = norm.add_rms_norm(x, residual, weight, 1e-6)
    plain, plain_total = add_rms_norm_reference(x, residual, weight, 1e-6)
    exact, exact_total = add_rms_norm_reference(x.double(), residual.double(), weight.double(), 1e-6)
    alone = rms_norm_reference(x.double(), weight.double(), 1e-6)
    return [
        (got, plain, exact),
        (total, plain_total, exact_total),
        (norm.rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6), alone),
    ]


def silu_case(draw: Draw, rows: int, inner: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    x = draw.normal(rows, 2 * inner) * 3
    return [
        (activation.silu_mul(x), silu_mul_reference(x), silu_mul_reference(x.double())),
        (activation.gelu_mul(x), gelu_mul_reference(x), gelu_mul_reference(x.double())),
    ]


def rotary_case(
    draw: Draw, rows: int, *, heads: int, kv_heads: int, dim: int, page: int, normed: bool
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Padding rows are left out of the comparison; unmapped cells must not change."""
    fused = draw.normal(rows, (heads + 2 * kv_heads) * dim)
    q, k, v = fused.view(rows, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    weights = [draw.uniform(0.5, 1.5, dim) if normed else None for _ in range(2)]
    angles = torch.arange(4096, device=draw.device)[:, None] / 10000 ** (
        torch.arange(dim // 2, device=draw.device) / (dim // 2)
    )
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1).float().contiguous()
    positions = torch.tensor([draw.integer(0, 4095) for _ in range(rows)], device=draw.device)
    pages = -(-rows // page) + 2
    slots = draw.order(pages * page)[:rows].to(draw.device)
    slots[rows // 2] = -1

    def run(write, cast):  # type: ignore[no-untyped-def]
        keys, values = (
            cast(torch.full((pages, page, kv_heads, dim), 7.0, device=draw.device)) for _ in range(2)
        )
        norms = {
            name: None if w is None else cast(w)
            for name, w in zip(("q_weight", "k_weight"), weights, strict=True)
        }
        out = write(cast(q), cast(k), cast(v), positions, cos_sin, keys, values, slots, **norms, eps=1e-6)
        return out, keys, values

    got = run(rotary.rotary_write, lambda x: x.to(draw.dtype))
    plain = run(rotary_write_reference, lambda x: x.to(draw.dtype))
    exact = run(rotary_write_reference, lambda x: x.double())
    assert torch.equal(got[2], plain[2]), "values were not copied exactly"
    return list(zip(got, plain, exact, strict=True))


def moe_case(
    draw: Draw, rows: int, *, experts_count: int, top_k: int, hidden: int, inner: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    x, logits = draw.normal(rows, hidden), draw.normal(rows, experts_count)
    gate_up = draw.normal(experts_count, 2 * inner, hidden) * hidden**-0.5
    down = draw.normal(experts_count, hidden, inner) * inner**-0.5
    weights, chosen = route(logits.float(), top_k, renormalize=True)
    ours, numbers = experts.route(logits, top_k, renormalize=True)
    torch.testing.assert_close(ours, weights)  # of equal ones another may be chosen
    _, of_no_numbers = experts.route(logits * torch.nan, top_k, renormalize=True)
    assert all(len(set(row)) == top_k for row in of_no_numbers.tolist())
    weights, chosen = ours, numbers.long()
    first, second = draw.normal(experts_count, 2 * inner), draw.normal(experts_count, hidden)
    found = []
    for biases, limit in ((None, 0.0), ((first, second), 1.0)):
        kind = {"biases": biases, "limit": limit}
        got = experts.moe_experts(x, weights, numbers, gate_up, down, **kind)
        plain = moe_experts_reference(x, weights, chosen, gate_up, down, **kind)
        wide = {"biases": biases and tuple(bias.double() for bias in biases), "limit": limit}
        parts = (x.double(), weights.double(), chosen, gate_up.double(), down.double())
        found.append((got, plain, moe_experts_reference(*parts, **wide)))
    return found


def layer_cases(*, tiny: bool) -> Iterator[tuple[str, Callable[[Draw], list[tuple[Tensor, Tensor, Tensor]]]]]:
    for rows, width in [(1, 64), (5, 576)] if tiny else [(1, 1024), (257, 4096), (512, 576), (33, 5120)]:
        yield f"norm {rows}×{width}", lambda draw, r=rows, w=width: norm_case(draw, r, w)
        yield f"silu_mul {rows}×{width}", lambda draw, r=rows, w=width: silu_case(draw, r, w + 8)
    for rows in [3] if tiny else [1, 65, 512]:
        for heads, kv_heads, dim, page in [(4, 2, 64, 16), (16, 8, 128, 64), (9, 3, 64, 16), (7, 1, 128, 24)]:
            for normed in (False, True):
                yield (
                    f"rotary {rows} rows heads {heads}/{kv_heads} dim {dim}{' norm' if normed else ''}",
                    lambda draw, r=rows, h=heads, k=kv_heads, d=dim, p=page, n=normed: rotary_case(
                        draw, r, heads=h, kv_heads=k, dim=d, page=p, normed=n
                    ),
                )
    for rows in [3] if tiny else [1, 33, 700]:
        yield (
            f"moe {rows} rows",
            lambda draw, r=rows: moe_case(
                draw,
                r,
                experts_count=8 if tiny else 64,
                top_k=2,
                hidden=64 if tiny else 1024,
                inner=96 if tiny else 384,
            ),
        )
