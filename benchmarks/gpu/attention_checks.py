"""Cases of paged attention for kernels.py: decode spans, fused and from a list of work, and mixed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from kernel_checks import Draw
from torch import Tensor

from stretto.backends.torch.kernels import attention
from stretto.backends.torch.kernels.decode_work import plan_work
from stretto.backends.torch.kernels.fresh_token import FusedInputs
from stretto.backends.torch.ops.attention import paged_attention_reference
from stretto.backends.torch.ops.decode_work import decode_work_reference
from stretto.backends.torch.ops.rotary import rotary_write_reference
from stretto.backends.torch.work_list import SPAN_BITS, DecodeWork


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


RUN = 128  # tokens: short, so that some contexts have several runs


def listed(batch: Paged, processors: int = 132) -> DecodeWork:
    """The work list of decode spans, compared with the reference."""
    kv_heads, window = batch.k_pages.shape[2], int(batch.context_lens.max())
    starts = batch.query_starts if len(batch.q) > len(batch.context_lens) else None
    work = plan_work(batch.context_lens, starts, kv_heads, processors=processors, window=window, run_min=RUN)
    shares = len(work.items) - len(batch.context_lens)
    rows = batch.query_starts.diff().tolist()
    own = zip(rows, batch.context_lens.tolist(), strict=True)
    lengths = [tokens if starts is None or count == 1 else 0 for count, tokens in own]
    items, run_tokens = decode_work_reference(lengths, shares, work.runs_max, RUN)
    planned = [item for item in work.items.tolist() if item[0] >= 0]
    found = [(item & ((1 << SPAN_BITS) - 1), item >> SPAN_BITS) for item, *_ in planned]
    assert (found, int(work.run_tokens)) == (items, run_tokens), "another list of work"
    first_rows = range(len(rows)) if starts is None else starts.tolist()
    assert all(
        item[1:3] == [lengths[at], first_rows[at]] for item, (at, _) in zip(planned, found, strict=True)
    )
    return work


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
    by_list = attention.paged_attention(
        *batch.parts(), max_query=longest, decode_only=longest == 1, **kind, work=listed(batch)
    )
    return [(got, plain, exact), (by_list, plain, exact)]


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

    def fused(q, k, v, _positions, cos_sin, keys, values, slots, q_weight, k_weight):  # type: ignore[no-untyped-def]
        fresh = FusedInputs(k, v, slots, cos_sin, q_weight, k_weight, 1e-6)
        held = (keys, values, batch.block_tables, batch.context_lens)
        return attention.rotary_attention(q, *held, batch.scale, fresh, **kind)

    def plain(q, k, v, positions, cos_sin, keys, values, slots, q_weight, k_weight):  # type: ignore[no-untyped-def]
        where = (q, k, v, positions, cos_sin, keys, values, slots)
        q = rotary_write_reference(*where, q_weight=q_weight, k_weight=k_weight, eps=1e-6)
        tail = (batch.block_tables, batch.query_starts, batch.context_lens, batch.scale)
        return paged_attention_reference(q, keys, values, *tail, window=window, sinks=sinks)

    got, again = (run(fused, lambda x: x.to(draw.dtype)) for _ in range(2))
    assert torch.equal(got[0], again[0]), "the same call gave another answer"
    theirs, exact = run(plain, lambda x: x.to(draw.dtype)), run(plain, lambda x: x.double())
    assert torch.equal(got[2], theirs[2]), "values were not copied exactly"
    kind["work"] = listed(batch)
    by_list = run(fused, lambda x: x.to(draw.dtype))
    return [*zip(got, theirs, exact, strict=True), *zip(by_list, theirs, exact, strict=True)]


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
