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

from stretto.backends.torch.kernels import activation, attention, experts, norm, rotary
from stretto.backends.torch.kernels.fresh_token import FusedInputs
from stretto.backends.torch.ops.activation import gelu_mul_reference, silu_mul_reference
from stretto.backends.torch.ops.attention import paged_attention_reference
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


# ── pages ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Paged:
    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor
    scale: float

    def double(self) -> Paged:
        wide = (self.q.double(), self.k_pages.double(), self.v_pages.double())
        return Paged(*wide, self.block_tables, self.query_starts, self.context_lens, self.scale)

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        return (
            self.q,
            self.k_pages,
            self.v_pages,
            self.block_tables,
            self.query_starts,
            self.context_lens,
            self.scale,
        )


def paged(
    draw: Draw,
    spans: list[tuple[int, int]],
    *,
    page: int,
    kv_heads: int,
    group: int,
    dim: int,
    padding: int = 0,
) -> Paged:
    """Spans of (rows, context) on shuffled pages. Unused memory is NaN: spare pages, tails, padding."""
    needed = [-(-context // page) for _, context in spans]
    pages = draw.order(sum(needed) + 3)
    k_pages, v_pages = (draw.poison(len(pages), page, kv_heads, dim) for _ in range(2))
    width = max(needed) + 2
    tables = torch.full((len(spans) + padding, width), int(pages[-1]), dtype=torch.int32)
    taken = 0
    for span, (count, (_, context)) in enumerate(zip(needed, spans, strict=True)):
        mine = pages[taken : taken + count]
        taken += count
        tables[span, :count] = mine.int()
        for target in (k_pages, v_pages):
            filled = draw.poison(count * page, kv_heads, dim)
            filled[:context] = draw.normal(context, kv_heads, dim)
            target[mine.to(draw.device)] = filled.view(count, page, kv_heads, dim)
    rows = [count for count, _ in spans]
    starts = torch.tensor([0, *rows, *[0] * padding]).cumsum(0).int()
    lengths = torch.tensor([context for _, context in spans] + [0] * padding, dtype=torch.int32)
    q = draw.normal(sum(rows), kv_heads * group, dim)
    place = (tables.to(draw.device), starts.to(draw.device), lengths.to(draw.device))
    return Paged(q, k_pages, v_pages, *place, dim**-0.5)


def attention_case(
    draw: Draw,
    spans: list[tuple[int, int]],
    *,
    page: int,
    kv_heads: int,
    group: int,
    dim: int,
    padding: int = 0,
    window: int = 0,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """A window comes with sinks if it is even."""
    batch = paged(draw, spans, page=page, kv_heads=kv_heads, group=group, dim=dim, padding=padding)
    sinks = draw.normal(kv_heads * group) if window and window % 2 == 0 else None
    kind = {"window": window, "sinks": sinks}
    longest = max(count for count, _ in spans)
    got = attention.paged_attention(*batch.parts(), max_query=longest, decode_only=longest == 1, **kind)
    again = attention.paged_attention(*batch.parts(), max_query=longest, decode_only=longest == 1, **kind)
    assert torch.equal(got, again), "the same call gave another answer"
    plain = paged_attention_reference(*batch.parts(), **kind)
    exact = paged_attention_reference(*batch.double().parts(), **kind)
    return [(got, plain, exact)]


def fused_case(
    draw: Draw,
    contexts: list[int],
    *,
    page: int,
    kv_heads: int,
    group: int,
    dim: int,
    normed: bool,
    window: int = 0,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rotation, cache write and attention in one launch; one padding span. The new tokens' cells are NaN."""
    batch = paged(
        draw, [(1, context) for context in contexts], page=page, kv_heads=kv_heads, group=group, dim=dim
    )
    rows, heads = len(contexts), kv_heads * group
    last = batch.context_lens.long() - 1
    pages = batch.block_tables.gather(1, (last // page).unsqueeze(1)).squeeze(1).long()
    slots = pages * page + last % page
    batch.k_pages.flatten(0, 1)[slots] = torch.nan
    batch.v_pages.flatten(0, 1)[slots] = torch.nan
    batch.context_lens[rows // 2], slots[rows // 2] = (0, -1) if rows > 1 else (contexts[0], slots[0])
    product = draw.normal(rows, heads + 2 * kv_heads, dim)
    q_weight, k_weight = (draw.uniform(0.5, 1.5, dim) if normed else None for _ in range(2))
    angles = torch.arange(max(contexts), device=draw.device)[:, None] / 10000 ** (
        torch.arange(dim // 2, device=draw.device) / (dim // 2)
    )
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1).float().contiguous()
    sinks = draw.normal(heads) if window and window % 2 == 0 else None
    kind = {"window": window, "sinks": sinks}

    def run(attend, cast):  # type: ignore[no-untyped-def]
        q, k, v = cast(product).split([heads, kv_heads, kv_heads], dim=1)
        norms = [None if w is None else cast(w) for w in (q_weight, k_weight)]
        keys, values = cast(batch.k_pages).clone(), cast(batch.v_pages).clone()
        positions = last.clamp(min=0)
        out = attend(q, k, v, positions, cos_sin, keys, values, slots, *norms)
        real = slots >= 0
        return out[real], keys.flatten(0, 1)[slots[real]], values.flatten(0, 1)[slots[real]]

    def fused(q, k, v, positions, cos_sin, keys, values, slots, q_weight, k_weight):  # type: ignore[no-untyped-def]
        fresh = FusedInputs(k, v, positions, slots, cos_sin, q_weight, k_weight, 1e-6)
        return attention.rotary_attention(
            q, keys, values, batch.block_tables, batch.context_lens, batch.scale, fresh, **kind
        )

    def plain(q, k, v, positions, cos_sin, keys, values, slots, q_weight, k_weight):  # type: ignore[no-untyped-def]
        where = (q, k, v, positions, cos_sin, keys, values, slots)
        q = rotary_write_reference(*where, q_weight=q_weight, k_weight=k_weight, eps=1e-6)
        tail = (batch.block_tables, batch.query_starts, batch.context_lens, batch.scale)
        return paged_attention_reference(q, keys, values, *tail, **kind)

    got, again = (run(fused, lambda x: x.to(draw.dtype)) for _ in range(2))
    assert torch.equal(got[0], again[0]), "the same call gave another answer"
    theirs = run(plain, lambda x: x.to(draw.dtype))
    assert torch.equal(got[2], theirs[2]), "values were not copied exactly"
    return list(zip(got, theirs, run(plain, lambda x: x.double()), strict=True))


def attention_cases(
    *, tiny: bool
) -> Iterator[tuple[str, Callable[[Draw], list[tuple[Tensor, Tensor, Tensor]]]]]:
    """Names and cases: lengths around a page, long ones, batches of 1 to 512, groups of 1 to 8, windows."""
    far = 300 if tiny else 32768
    batches = [1, 3] if tiny else [1, 7, 64, 256, 512]
    shapes = [
        (16, 2, 2, 64, 0),
        (64, 1, 4, 128, 0),
        (32, 2, 1, 64, 0),
        (16, 1, 8, 128, 0),
        (16, 1, 7, 64, 0),
        (24, 1, 5, 128, 0),
        (16, 2, 2, 64, 40),
        (32, 2, 2, 256, 101),
        (32, 1, 8, 64, 128),
        (24, 1, 5, 128, 7),
    ]
    for number, (page, kv_heads, group, dim, window) in enumerate(shapes):
        batch = batches[number % len(batches)]
        wider = kv_heads if tiny else max(kv_heads, 2 + number % 2 * 6)
        options = {"page": page, "kv_heads": wider, "group": group, "dim": dim, "window": window}

        def decode(draw: Draw, batch: int = batch, page: int = page, options: dict[str, int] = options):  # type: ignore[no-untyped-def]
            edge = [far, 1, page - 1, page, page + 1]
            spans = [(1, edge[i] if i < len(edge) else draw.integer(1, 700)) for i in range(batch)]
            return attention_case(draw, spans[::-1], padding=batch % 3, **options)

        def mixed(draw: Draw, batch: int = batch, page: int = page, options: dict[str, int] = options):  # type: ignore[no-untyped-def]
            chunk = 40 if tiny else 300
            spans = [
                (1, page + 1),
                (page, page),
                (page + 1, 3 * page),
                (1, 1),
                (2, far),
                (chunk, chunk + page),
            ]
            spans += [(1, draw.integer(1, 200)) for _ in range(batch)]
            spans += [(draw.integer(2, chunk), 2 * chunk)]
            return attention_case(draw, spans, padding=2, **options)

        label = f"page {page} kv {wider} group {group} dim {dim} window {window} batch {batch}"

        def fused(
            draw: Draw,
            batch: int = batch,
            page: int = page,
            options: dict[str, int] = options,
            number: int = number,
        ):  # type: ignore[no-untyped-def]
            edge = [far, 1, page - 1, page, page + 1, 64, 65]
            contexts = [edge[i] if i < len(edge) else draw.integer(1, 700) for i in range(batch)]
            return fused_case(draw, contexts[::-1], normed=number % 2 == 0, **options)

        yield f"decode {label}", decode
        yield f"rotary decode {label}", fused
        yield f"mixed {label}", mixed


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
