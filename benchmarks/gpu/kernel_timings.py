"""Times attention and layer kernels and their variants at the shapes of Qwen3 models; for kernels.py.

Each timing is a name, the variant, and a function returning seconds with the minimum bytes and operations.
Timings with a goal have a `bar`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from attention_checks import Paged
from kernel_checks import Draw
from measure import rotations, seconds
from torch import Tensor

from stretto.backends.torch.kernels import activation, attention, norm, rotary
from stretto.backends.torch.kernels.decode import DecodeShape
from stretto.backends.torch.kernels.fresh_token import FusedInputs
from stretto.backends.torch.kernels.prefill import PrefillShape

VOCAB = 151_936
Run = Callable[[], "tuple[float, float, float]"]  # seconds, bytes, operations


@dataclass(frozen=True, slots=True)
class KernelTiming:
    name: str
    variant: str
    run: Run
    bar: float = 0.0  # minimum share of the copy bandwidth; 0: no goal


def timings(*, quick: bool) -> Iterator[KernelTiming]:
    yield from decode_timings(quick=quick)
    yield from prefill_timings(quick=quick)
    yield from layer_timings(quick=quick)


# ── attention ───────────────────────────────────────────────────────────────────────────────────


def _context_lengths(batch: int, context: int, *, ragged: bool) -> Tensor:
    if not ragged:
        return torch.full((batch,), context)
    return torch.randint(100, 2 * context, (batch,), generator=torch.Generator().manual_seed(0))


_pools: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}


def _pool(pages: int, page: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """One pool of random pages, kept between timings: creating it takes longer than timing."""
    key = (page, kv_heads, dim)
    if key not in _pools or _pools[key][0].shape[0] < pages:
        _pools.clear()
        _pools[key] = tuple(  # type: ignore[assignment]
            torch.randn(pages, page, kv_heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )
    return _pools[key]


def _batches(
    lengths: Tensor, rows: int, *, page: int, kv_heads: int, group: int, dim: int
) -> tuple[list[Paged], float]:
    """Sets of inputs on disjoint pages of one pool, and the bytes a call must move. `rows`: per span."""
    needed = (lengths + page - 1) // page
    pages = int(needed.sum())
    spans, heads = len(lengths), kv_heads * group
    moved = int(lengths.sum()) * kv_heads * dim * 4 + spans * rows * heads * dim * 4
    sets = rotations(moved)
    k_pages, v_pages = _pool(sets * pages, page, kv_heads, dim)
    batches = []
    for number in range(sets):
        mine = torch.randperm(pages, generator=torch.Generator().manual_seed(number)) + number * pages
        tables = torch.zeros(spans, int(needed.max()), dtype=torch.int32)
        ends = needed.cumsum(0).tolist()
        for span, end in enumerate(ends):
            count = int(needed[span])
            tables[span, :count] = mine[end - count : end].int()
        q = torch.randn(spans * rows, heads, dim, device="cuda", dtype=torch.bfloat16)
        starts = torch.arange(0, spans * rows + 1, rows, dtype=torch.int32, device="cuda")
        place = (tables.cuda(), starts, lengths.int().cuda())
        batches.append(Paged(q, k_pages, v_pages, *place, dim**-0.5))
    return batches, moved


def _decode(
    batch: int,
    context: int,
    *,
    page: int = 64,
    group: int = 2,
    kv_heads: int = 8,
    dim: int = 128,
    ragged: bool = False,
    shape: DecodeShape | None = None,
    fused: bool = False,
) -> Run:
    def run() -> tuple[float, float, float]:
        lengths = _context_lengths(batch, context, ragged=ragged)
        batches, moved = _batches(lengths, 1, page=page, kv_heads=kv_heads, group=group, dim=dim)
        calls = [
            lambda one=one: attention.paged_attention(
                *one.parts(), max_query=1, decode_only=True, decode_shape=shape
            )
            for one in batches
        ]
        if fused:
            calls = [
                _fused_call(one, kv_heads=kv_heads, group=group, dim=dim, shape=shape) for one in batches
            ]
        return seconds(calls), moved, 0.0

    return run


def _fused_call(
    one: Paged, *, kv_heads: int, group: int, dim: int, shape: DecodeShape | None
) -> Callable[[], Tensor]:
    rows, page = one.q.shape[0], one.k_pages.shape[1]
    made = torch.randn(rows, (group + 2) * kv_heads, dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = made.split([group * kv_heads, kv_heads, kv_heads], dim=1)
    last = one.context_lens.long() - 1
    slots = one.block_tables.gather(1, (last // page).unsqueeze(1)).squeeze(1).long() * page + last % page
    cos_sin = torch.randn(int(last.max()) + 1, dim, device="cuda")
    weight = torch.ones(dim, device="cuda", dtype=torch.bfloat16)
    fresh = FusedInputs(k, v, slots, cos_sin, weight, weight, 1e-6)
    tail = (one.block_tables, one.context_lens, one.scale, fresh)
    return lambda: attention.rotary_attention(q, one.k_pages, one.v_pages, *tail, decode_shape=shape)


LONG_SHAPES = tuple(
    (block_n, warps, stages, splits)
    for block_n, warps, stages in (
        (64, 2, 3),
        (64, 2, 4),
        (64, 4, 4),
        (128, 4, 2),
        (128, 4, 3),
        (128, 8, 2),
        (32, 2, 6),
    )
    for splits in (2, 16, 33)
)


def decode_timings(*, quick: bool) -> Iterator[KernelTiming]:
    yield from _decode_sizes()
    yield from _decode_splits()
    yield from _decode_tiles(quick=quick)


def _decode_sizes() -> Iterator[KernelTiming]:
    for group, page in [(2, 16), (2, 64), (4, 16), (4, 32), (4, 64)]:
        label = f"decode 256×1024 group {group} page {page}"
        yield KernelTiming(label, "default", _decode(256, 1024, page=page, group=group), 0.85)
    for page in (16, 32, 64):
        yield KernelTiming(
            f"decode 1×32768 group 4 page {page}", "default", _decode(1, 32768, page=page, group=4), 1 / 1.3
        )
    for page, touch, (block_n, warps, stages) in product(
        (16, 32, 64), (False, True), ((64, 2, 4), (128, 4, 3))
    ):
        shape = DecodeShape(block_n, splits=16, tiles_min=1, warps=warps, stages=stages, touch=touch)
        note = f"tile {block_n} warps {warps} stages {stages}{' touch' if touch else ''}"
        run = _decode(1, 32768, page=page, group=4, shape=shape)
        yield KernelTiming(f"decode 1×32768 group 4 page {page}", note, run)
    for batch, context in ((1, 131_072), (8, 32_768)):
        run = _decode(batch, context, page=32, group=4)
        yield KernelTiming(f"decode {batch}×{context} group 4 page 32", "default", run)
    for group, (batch, context) in product((2, 4), ((1, 1024), (8, 1024), (256, 1024), (1, 32768))):
        name = f"decode rotary {batch}×{context} group {group} page 64"
        yield KernelTiming(name, "default", _decode(batch, context, group=group, fused=True))


def _decode_splits() -> Iterator[KernelTiming]:
    for splits, least in product((4, 8, 16), (1, 2, 4)):
        shape = DecodeShape(splits=splits, tiles_min=least)
        note = f"splits {splits} of {least} tiles"
        run = _decode(1, 1024, fused=True, shape=shape)
        yield KernelTiming("decode rotary 1×1024 group 2 page 64", note, run)
    for batch, splits in product((8, 16, 64, 128), (1, 2, 3, 4, 6, 8, 12, 16)):
        if batch * splits <= 384:
            run = _decode(batch, 1024, group=4, fused=True, shape=DecodeShape(splits=splits, tiles_min=1))
            yield KernelTiming(f"decode rotary {batch}×1024 group 4 page 64", f"splits {splits}", run)
    for block_n, warps, stages, splits in LONG_SHAPES:
        shape = DecodeShape(block_n=block_n, splits=splits, tiles_min=1, warps=warps, stages=stages)
        note = f"tile {block_n} warps {warps} stages {stages} splits {splits}"
        yield KernelTiming(
            "decode long 1×32768 group 4 page 64", note, _decode(1, 32768, group=4, shape=shape)
        )
        yield KernelTiming(
            "decode long 8×1024 group 4 page 64", note, _decode(8, 1024, group=4, shape=shape, fused=True)
        )
    for batch, tokens in product((32, 64, 128, 192), (256, 512, 1024, 8192)):
        runs = DecodeShape(splits=8, tiles_min=tokens // 64)
        run = _decode(batch, 1024, group=4, ragged=True, shape=runs)
        yield KernelTiming(f"decode {batch} ragged ~1024 group 4 page 64", f"runs of {tokens}", run)
    yield KernelTiming("decode 1×1024 group 2 page 64", "default", _decode(1, 1024))
    yield KernelTiming("decode 8×8192 group 4 page 64", "default", _decode(8, 8192, group=4))
    yield KernelTiming("decode 32×1024 group 4 page 64", "default", _decode(32, 1024, group=4))
    yield KernelTiming("decode 256 ragged ~1024 group 2 page 64", "default", _decode(256, 1024, ragged=True))
    yield KernelTiming(
        "decode 256 ragged ~1024 group 2 page 16", "default", _decode(256, 1024, ragged=True, page=16)
    )


def _decode_tiles(*, quick: bool) -> Iterator[KernelTiming]:
    blocks = product((32, 64, 128), (2, 4, 8), (2, 3, 4, 5))
    for block_n, warps, stages in blocks:
        if (
            block_n * 512 * (stages - 1) > 200_000
            or block_n // warps > 32
            or (quick and (warps == 8 or stages == 5))
        ):
            continue
        for page in (64,) if quick else (64, 16):
            whole = DecodeShape(block_n=block_n, splits=1, tiles_min=1, warps=warps, stages=stages)
            note = f"tile {block_n} warps {warps} stages {stages}"
            yield KernelTiming(
                f"decode 256×1024 group 2 page {page}", note, _decode(256, 1024, page=page, shape=whole)
            )
    for block_n, warps, stages in ((64, 4, 3), (64, 4, 5), (128, 8, 3), (32, 4, 4), (32, 2, 4), (64, 8, 4)):
        for splits in (16, 33, 49, 66, 99, 128):
            shape = DecodeShape(block_n=block_n, splits=splits, tiles_min=1, warps=warps, stages=stages)
            note = f"tile {block_n} warps {warps} stages {stages} splits {splits}"
            yield KernelTiming(
                "decode 1×32768 group 4 page 64", note, _decode(1, 32768, group=4, shape=shape)
            )
        for tokens in (256, 512, 1024, 4096):
            shape = DecodeShape(
                block_n=block_n, splits=8, tiles_min=tokens // block_n, warps=warps, stages=stages
            )
            note = f"tile {block_n} warps {warps} stages {stages} runs of {tokens}"
            yield KernelTiming(
                "decode 256 ragged ~1024 group 2 page 64", note, _decode(256, 1024, ragged=True, shape=shape)
            )
        if quick and block_n == 128:
            break


def _prefill(
    spans: int, chunk: int, context: int, *, group: int = 4, page: int = 64, shape: PrefillShape | None = None
) -> Run:
    def run() -> tuple[float, float, float]:
        lengths = torch.full((spans,), context)
        batches, moved = _batches(lengths, chunk, page=page, kv_heads=8, group=group, dim=128)
        calls = [
            lambda one=one: attention.paged_attention(
                *one.parts(), max_query=chunk, decode_only=False, prefill_shape=shape
            )
            for one in batches
        ]
        pairs = spans * (chunk * (context - chunk) + chunk * (chunk + 1) / 2)
        return seconds(calls), moved, pairs * 4 * 128 * 8 * group

    return run


def _torch_causal(spans: int, chunk: int, *, group: int = 4) -> Run:
    """torch's fused attention on contiguous keys, as a reference point for paged attention."""

    def run() -> tuple[float, float, float]:
        q = torch.randn(spans, 8 * group, chunk, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(spans, 8, chunk, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        attend = torch.nn.functional.scaled_dot_product_attention
        taken = seconds([lambda: attend(q, k, v, is_causal=True, enable_gqa=True)])
        return taken, 0.0, spans * chunk * (chunk + 1) / 2 * 4 * 128 * 8 * group

    return run


def prefill_timings(*, quick: bool) -> Iterator[KernelTiming]:
    for spans, chunk, context in [(1, 4096, 4096), (8, 1024, 1024), (1, 512, 8192), (4, 512, 1024)]:
        for group in (2, 4):
            name = f"prefill {spans}×{chunk} of {context} group {group} page 64"
            yield KernelTiming(name, "default", _prefill(spans, chunk, context, group=group))
    yield KernelTiming("prefill 1×4096 of 4096 group 4 page 16", "default", _prefill(1, 4096, 4096, page=16))
    yield KernelTiming("prefill 1×4096 of 4096 group 4 page 64", "torch sdpa", _torch_causal(1, 4096))
    yield KernelTiming("prefill 8×1024 of 1024 group 4 page 64", "torch sdpa", _torch_causal(8, 1024))
    shapes = [
        (128, 64, 8, 2),
        (128, 64, 8, 4),
        (64, 64, 4, 2),
        (128, 128, 8, 2),
        (64, 64, 4, 3),
        (64, 32, 4, 3),
    ]
    shapes += [(128, 32, 8, 3), (128, 32, 8, 4)]
    for block_m, block_n, warps, stages in shapes[: 4 if quick else None]:
        shape = PrefillShape(block_m=block_m, block_n=block_n, warps=warps, stages=stages)
        note = f"tile {block_m}×{block_n} warps {warps} stages {stages}"
        yield KernelTiming(
            "prefill 1×4096 of 4096 group 4 page 64", note, _prefill(1, 4096, 4096, shape=shape)
        )
        yield KernelTiming("prefill 1×512 of 8192 group 4 page 64", note, _prefill(1, 512, 8192, shape=shape))


# ── the rest of a layer ─────────────────────────────────────────────────────────────────────────


def rotated(bytes_per_call: float, call: Callable[[Draw], tuple[Callable[[], object], float]]) -> Run:
    def run() -> tuple[float, float, float]:
        made = [call(Draw(number, "cuda", torch.bfloat16)) for number in range(rotations(bytes_per_call))]
        return seconds([one for one, _ in made]), made[0][1], 0.0

    return run


def layer_timings(*, quick: bool) -> Iterator[KernelTiming]:
    for rows, width in [(1, 1024), (256, 1024), (256, 4096), (4096, 4096)]:

        def normed(draw: Draw, rows: int = rows, width: int = width, warps: int | None = None):  # type: ignore[no-untyped-def]
            x, residual, weight = draw.normal(rows, width), draw.normal(rows, width), draw.normal(width)
            return lambda: norm.add_rms_norm(x, residual, weight, 1e-6, warps=warps), rows * width * 8.0

        moved = rows * width * 8.0
        yield KernelTiming(f"add_rms_norm {rows}×{width}", "default", rotated(moved, normed))
        for warps in () if quick else (1, 2, 4, 8, 16):
            run = rotated(moved, lambda draw, n=normed, w=warps: n(draw, warps=w))
            yield KernelTiming(f"add_rms_norm {rows}×{width}", f"warps {warps}", run)
    for rows, inner in [(1, 3072), (256, 3072), (256, 12288), (4096, 12288)]:
        for block, warps in ((2048, 8),) if quick else ((512, 2), (1024, 4), (2048, 8), (4096, 8)):

            def gated(
                draw: Draw, rows: int = rows, inner: int = inner, block: int = block, warps: int = warps
            ):  # type: ignore[no-untyped-def]
                x = draw.normal(rows, 2 * inner)
                return lambda: activation.silu_mul(x, block=block, warps=warps), rows * inner * 6.0

            note = f"block {block} warps {warps}"
            yield KernelTiming(f"silu_mul {rows}×{inner}", note, rotated(rows * inner * 6.0, gated))
    for rows, heads in [(1, 16), (256, 16), (256, 32), (2048, 32)]:
        for block, warps in ((4, 2),) if quick else ((2, 1), (4, 1), (4, 2), (8, 2), (8, 4), (16, 4)):

            def written(
                draw: Draw, rows: int = rows, heads: int = heads, block: int = block, warps: int = warps
            ):  # type: ignore[no-untyped-def]
                return _rotary_call(draw, rows, heads, block, warps)

            note = f"heads {block} warps {warps}"
            moved = rows * (heads + 16) * 128 * 4.0
            yield KernelTiming(f"rotary_write {rows} rows {heads}/8 heads", note, rotated(moved, written))


def _rotary_call(
    draw: Draw, rows: int, heads: int, block: int, warps: int
) -> tuple[Callable[[], object], float]:
    fused = draw.normal(rows, (heads + 16) * 128)
    q, k, v = fused.view(rows, -1, 128).split([heads, 8, 8], dim=1)
    q_weight, k_weight = draw.normal(128), draw.normal(128)
    k_pages, v_pages = (draw.normal(rows // 64 + 1, 64, 8, 128) for _ in range(2))
    positions = torch.arange(rows, device="cuda")
    cos_sin = torch.randn(4096, 128, device="cuda")

    def call() -> Tensor:
        return rotary.rotary_write(
            q,
            k,
            v,
            positions,
            cos_sin,
            k_pages,
            v_pages,
            positions,
            q_weight=q_weight,
            k_weight=k_weight,
            eps=1e-6,
            heads_block=block,
            warps=warps,
        )

    return call, rows * (heads + 16) * 128 * 4.0
