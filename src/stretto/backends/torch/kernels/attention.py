"""Paged attention on CUDA: choice of kernel and of its work partition.

Decided on the host from shapes alone. In a mixed batch, decode spans go to the decode kernel and chunks to
the prefill kernel; in each, programs for the other's spans exit immediately.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from stretto.backends.torch.kernels.decode import DecodeShape, decode
from stretto.backends.torch.kernels.decode_work import plan_work
from stretto.backends.torch.kernels.fresh_token import FusedInputs
from stretto.backends.torch.kernels.prefill import PrefillShape, prefill
from stretto.backends.torch.work_list import DecodeWork

SPLITS_MIN = 2  # while (span, head) pairs do not outnumber the multiprocessors
EVEN_CONTEXT = 4096  # in longer contexts one span may be much longer than the others
SPLITS_MAX = 128
RUN_TOKENS_MIN = 128
WINDOW_TILE = 64
WIDE_HEAD = 128
RUN_TOKENS = 1024  # for a batch that fills the GPU
RUNS_MAX = 8
FP8_RUN_TOKENS = 512
FP8_TILE = 32  # for one warp: it need not exchange anything with others
LISTED_TILE = 32
WIDE_BYTES = 256  # of a head's key
MERGED_AT_ONCE = 8192  # numbers, for few spans: 64 in each thread of four warps
LONG_CONTEXT = 16_384  # from here on larger tiles are faster, if they fit
LONG_SHARED_BYTES = 140_000  # two tiles of 128 keys and values in flight, plus per-row state


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    max_query: int,
    decode_only: bool,
    scales: tuple[Tensor, Tensor] | None = None,
    max_context: int | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
    work: DecodeWork | None = None,
    decode_shape: DecodeShape | None = None,
    prefill_shape: PrefillShape | None = None,
) -> Tensor:
    assert k_pages.stride() == v_pages.stride()
    assert q.stride(2) == k_pages.stride(3) == block_tables.stride(1) == 1
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.shape[0]:
        return out
    spans, page_tokens, kv_heads = context_lens.shape[0], k_pages.shape[1], k_pages.shape[2]
    context = seen_context(min(max_context or 2**31, block_tables.shape[1] * page_tokens), window)
    shared = (q, k_pages, v_pages, block_tables, query_starts, context_lens, scale, out)
    if max_query > 1 and not decode_only:
        chosen = prefill_shape or choose_prefill(q, q.shape[1] // kv_heads)
        prefill(*shared, shape=chosen, scales=scales, window=window, sinks=sinks)
    if decode_only or spans > 1 or max_query == 1:
        work = None if window else work
        sizes = {"dim": q.shape[2], "itemsize": k_pages.element_size()}
        shape = decode_shape or (
            choose_decode(spans, kv_heads, context, **sizes, machine=_machine(q.device))
            if work is None
            else listed_shape(work.runs_max, **sizes)
        )
        decode(
            *shared,
            mixed=not decode_only,
            shape=shape,
            scales=scales,
            window=window,
            sinks=sinks,
            work=work,
        )
    return out


def rotary_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    fresh: FusedInputs,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    max_context: int | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
    work: DecodeWork | None = None,
    decode_shape: DecodeShape | None = None,
) -> Tensor:
    """Decode rows directly from their QKV product: rotation, cache write and attention in one launch."""
    assert k_pages.stride() == v_pages.stride()
    assert q.stride(2) == k_pages.stride(3) == block_tables.stride(1) == fresh.k.stride(2) == 1
    assert fresh.cos_sin.is_contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.shape[0]:
        return out
    work = None if window else work
    spans, kv_heads, page_tokens = context_lens.shape[0], k_pages.shape[2], k_pages.shape[1]
    context = seen_context(min(max_context or 2**31, block_tables.shape[1] * page_tokens), window)
    sizes = {"dim": q.shape[2], "itemsize": k_pages.element_size()}
    shape = decode_shape or (
        choose_decode(spans, kv_heads, context, **sizes, machine=_machine(q.device))
        if work is None
        else listed_shape(work.runs_max, **sizes)
    )
    decode(
        q,
        k_pages,
        v_pages,
        block_tables,
        context_lens,
        context_lens,
        scale,
        out,
        mixed=False,
        shape=shape,
        fresh=fresh,
        scales=scales,
        window=window,
        sinks=sinks,
        work=work,
    )
    return out


def seen_context(context: int, window: int) -> int:
    """Tokens that a decode row reads at most: a window begins anywhere in a tile."""
    return min(context, window + WINDOW_TILE) if window else context


@dataclass(frozen=True, slots=True)
class GpuShape:
    """What the partition depends on: multiprocessors, and shared memory per program."""

    processors: int = 132
    shared_bytes: int = 232_448


def choose_decode(
    spans: int, kv_heads: int, context: int, *, dim: int, itemsize: int, machine: GpuShape
) -> DecodeShape:
    """Few spans: as many runs as fill the GPU. More: runs of a fixed length, because spans are ragged.

    With one run per span, the longest span would occupy a single multiprocessor while the others idle; runs
    that a short span does not need exit immediately.
    """
    block_n = 64 if dim * itemsize <= WIDE_BYTES else 32
    pairs, processors = max(spans * kv_heads, 1), machine.processors
    if pairs <= processors // 2 or (pairs <= processors and context <= EVEN_CONTEXT):
        long = context >= LONG_CONTEXT and machine.shared_bytes >= LONG_SHARED_BYTES
        block_n *= 2 if long else 1
        tiles_min = max(RUN_TOKENS_MIN // block_n, 1)
        runs = max(triton.cdiv(context, block_n * tiles_min), 1)
        splits = min(max(processors // pairs, SPLITS_MIN), runs, SPLITS_MAX)
        return DecodeShape(
            block_n=block_n, splits=splits, tiles_min=tiles_min, touch=long, merge=MERGED_AT_ONCE
        )
    if itemsize == 1:
        splits = min(max(triton.cdiv(context, FP8_RUN_TOKENS), 1), RUNS_MAX)
        return DecodeShape(
            block_n=FP8_TILE, splits=splits, tiles_min=FP8_RUN_TOKENS // FP8_TILE, warps=1, stages=4
        )
    tiles_min = max(RUN_TOKENS // block_n, 1)
    splits = min(max(triton.cdiv(context, block_n * tiles_min), 1), RUNS_MAX)
    return DecodeShape(block_n=block_n, splits=splits, tiles_min=tiles_min)


def plan_decode(
    context_lens: Tensor, query_starts: Tensor | None, kv_heads: int, *, window: int
) -> DecodeWork | None:
    """None for so few spans that a launch divides each of them among many programs."""
    machine = _machine(context_lens.device)
    if context_lens.shape[0] <= _unlisted_max(kv_heads, machine):
        return None
    return plan_work(context_lens, query_starts, kv_heads, processors=machine.processors, window=window)


def _unlisted_max(kv_heads: int, machine: GpuShape) -> int:
    """Spans that do not need a list of work."""
    return machine.processors // 2 // kv_heads


def listed_shape(runs_max: int, *, dim: int, itemsize: int) -> DecodeShape:
    """For programs that take their runs from a list: of one warp each, many run at once."""
    return DecodeShape(block_n=LISTED_TILE, splits=runs_max, warps=1 if dim * itemsize <= WIDE_BYTES else 4)


def span_variants(
    slots: int,
    kv_heads: int,
    context: int,
    *,
    windows: tuple[int, ...] = (),
    dim: int,
    itemsize: int,
    device: torch.device,
) -> list[int]:
    """The fewest spans of each compiled variant of the decode kernel, for up to `slots` spans.

    `windows`: of the layers, 0 for none; empty if no layer has one.
    """
    machine, found = _machine(device), dict[tuple[DecodeShape, bool, int], int]()
    for spans in range(1, slots + 1):
        for window in sorted(set(windows)) or (0,):
            seen = seen_context(context, window)
            shape = choose_decode(spans, kv_heads, seen, dim=dim, itemsize=itemsize, machine=machine)
            padded = replace(shape, splits=triton.next_power_of_2(shape.splits), tiles_min=0)
            found.setdefault((padded, shape.splits > 1, window), spans)
    listed = _unlisted_max(kv_heads, machine) + 1
    return sorted({*found.values(), *([listed] if listed <= slots else [])})


def choose_prefill(q: Tensor, group: int) -> PrefillShape:
    if q.dtype == torch.float32:
        return PrefillShape(block_m=64, block_n=32, warps=4, stages=2)
    if q.shape[2] > WIDE_HEAD:  # queries and two tiles take half of the shared memory
        return PrefillShape(block_n=32, warps=8, stages=2)
    return PrefillShape(block_m=64 if 64 % group == 0 else 128)


@cache
def _machine(device: torch.device) -> GpuShape:
    if device.type != "cuda":  # the interpreter
        return GpuShape()
    properties = torch.cuda.get_device_properties(device)
    shared_bytes = getattr(properties, "shared_memory_per_block_optin", LONG_SHARED_BYTES)
    return GpuShape(properties.multi_processor_count, shared_bytes)
