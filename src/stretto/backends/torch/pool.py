"""The KV pool: pages of a few tokens each, sized by the memory left after the weights.

Knows bytes and pages; the ledger decides which page holds what. Nothing is reserved in advance for output
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.graphs import mixed_buckets
from stretto.backends.torch.models.layers import LayerPages, Placement
from stretto.backends.torch.ops import FP8, KvScales
from stretto.errors import OutOfMemoryError

PAGE_TOKENS = 32
MEMORY_SHARE = 0.92  # of a GPU's free memory, after weights and activations
SLACK_BYTES = 1 << 30  # CUDA graphs, cuBLAS, fragmentation
CPU_POOL_BYTES = 2 << 30


class DraftMemory(NamedTuple):
    """What a draft model takes of a device beside its weights: a page for each of the target's, at most."""

    page_bytes: int
    pages_max: int
    pass_bytes: int


class KvPool:
    """Keys and values have the type of the weights, or are FP8 with `scales` for each layer."""

    def __init__(
        self,
        shape: TransformerShape,
        place: Placement,
        *,
        pages: int,
        page_tokens: int,
        scales: Sequence[KvScales] | None = None,
    ) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        dtype = place.dtype if scales is None else FP8
        self.is_fp8 = scales is not None
        self.bytes_per_token = shape.kv_bytes_per_token(dtype.itemsize)
        size = (shape.layers, 2, pages, page_tokens, shape.kv_heads, shape.head_dim)
        self.memory = torch.empty(size, dtype=dtype, device=place.device)
        own = [None] * shape.layers if scales is None else scales
        self.layers = tuple(
            LayerPages(k=layer[0], v=layer[1], scales=scale)
            for layer, scale in zip(self.memory, own, strict=True)
        )

    def copy_page(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of a page, in all layers."""
        self.memory[:, :, target, :length] = self.memory[:, :, source, :length]


def pages_that_fit(
    shape: TransformerShape,
    place: Placement,
    *,
    slots: int,
    window: int,
    rows_max: int,
    page_tokens: int,
    kv_item_bytes: int = 0,
    outputs_max: int = 0,
    draft: DraftMemory | None = None,
) -> int:
    """As many pages as fit in memory; on a CPU as many as all slots can fill, within a bound.

    `outputs_max`: rows of a pass with logits, where that is more than `slots`. `draft`: the draft model gets
    as many pages, which have to fit as well.
    """
    page_bytes = shape.kv_bytes_per_token(kv_item_bytes or place.dtype.itemsize) * page_tokens
    window_pages = -(-window // page_tokens)
    if place.device.type != "cuda":
        return max(window_pages, min(slots * window_pages, _pages_in(CPU_POOL_BYTES, page_bytes, draft)))
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(place.device)
    free -= SLACK_BYTES + pass_bytes(shape, place, outputs_max=max(slots, outputs_max), rows_max=rows_max)
    in_graphs = max(mixed_buckets(shape, rows_max), default=0)  # they have memory of their own
    free -= pass_bytes(shape, place, outputs_max=slots, rows_max=in_graphs)
    free -= draft.pass_bytes if draft is not None else 0
    pages = _pages_in(int(free * MEMORY_SHARE), page_bytes, draft)
    if pages < 1 or pages * page_tokens < min(window, 1024):
        raise OutOfMemoryError(
            f"{free >> 20} MiB are left for the KV cache, not enough for one request",
            hint="lower n_batch or n_seq_max, or use a smaller model",
        )
    return pages


def _pages_in(room: int, page_bytes: int, draft: DraftMemory | None) -> int:
    """Pages for which there is room, beside those of the draft model."""
    if draft is None:
        return room // page_bytes
    both = room // (page_bytes + draft.page_bytes)
    return both if both <= draft.pages_max else (room - draft.pages_max * draft.page_bytes) // page_bytes


def pass_bytes(shape: TransformerShape, place: Placement, *, outputs_max: int, rows_max: int) -> int:
    """Upper estimate of the activations and logits of the largest pass."""
    inner = shape.inner if shape.experts is None else shape.experts.inner * shape.experts.per_token
    width = 8 * shape.hidden + 4 * inner + 4 * shape.heads * shape.head_dim
    return rows_max * width * place.dtype.itemsize + outputs_max * shape.vocab * 24
