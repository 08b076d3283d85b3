"""Layers shared by all families, over a flat ragged batch: the rows of all spans, concatenated.

Knows weights and rows. A `Step` describes the rows; the operators come from `ops`, which selects Triton on a
GPU and plain torch elsewhere. Q, K and V are one product, gate and up another: fewer, larger matrices are
faster on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from stretto.backends.torch import ops
from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.low_rank import LowRank
from stretto.backends.torch.parallel.group import RankGroup
from stretto.backends.torch.weights import WeightSource

FP8_MULTIPLE = 16  # of rows and columns


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and type of weights. `fp8`: matrices of the layers are quantized when they are loaded.

    With `ranks` the shape of a layer is that of this rank's part.
    """

    device: torch.device
    dtype: torch.dtype
    fp8: bool = False
    ranks: RankGroup | None = None  # of which this process computes one part


@dataclass(slots=True)
class Step:
    """One pass over a ragged batch. `slot_mapping` is page × page size + offset, -1 for padding rows."""

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    max_query: int
    decode_only: bool
    adapter_scales: torch.Tensor | None = None  # [rows, adapters]; None: no row of the pass has an adapter


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's share of the KV pool: [pages, page_tokens, kv_heads, head_dim] each; FP8 has scales."""

    k: torch.Tensor
    v: torch.Tensor
    scales: ops.KvScales | None = None


Pair = tuple[torch.Tensor, torch.Tensor | None]  # rows as the sum of two tensors, the second optional


@dataclass(frozen=True, slots=True)
class Norm:
    gain: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalized sum, sum)."""
        if residual is None:
            return ops.rms_norm(x, self.gain, self.eps), x
        return ops.add_rms_norm(x, residual, self.gain, self.eps)


class Mixer(Protocol):
    """The part of a layer after attention: an MLP or experts, with the norm before it."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm, step: Step) -> Pair: ...

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Those that adapters may change."""


class Linear:
    """y = x Wᵀ (+ b), with W concatenated by rows from one or more tensors of the source."""

    __slots__ = ("adapters", "bias", "columns", "names", "weight")

    def __init__(
        self,
        source: WeightSource,
        names: dict[str, int],
        columns: int,
        place: Placement,
        *,
        bias: bool = False,
    ) -> None:
        rows = sum(names.values())
        weight = torch.empty(rows, columns, dtype=place.dtype, device=place.device)
        self.bias = torch.empty(rows, dtype=place.dtype, device=place.device) if bias else None
        at = 0
        for name, count in names.items():
            weight[at : at + count].copy_(source.read(f"{name}.weight", (count, columns)))
            if self.bias is not None:
                self.bias[at : at + count].copy_(source.read(f"{name}.bias", (count,)))
            at += count
        self.weight = quantized(weight) if place.fp8 else weight
        self.names, self.columns = names, columns
        self.adapters: LowRank | None = None

    def __call__(self, x: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        product = ops.linear(x, self.weight, self.bias)
        return product if scales is None else product + self.low_rank(x, scales)

    def low_rank(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        assert self.adapters is not None
        return self.adapters(x, scales)

    def add_adapters(self, *, count: int, rank: int, place: Placement) -> LowRank:
        self.adapters = LowRank(
            self.names, self.columns, count=count, rank=rank, dtype=place.dtype, device=place.device
        )
        return self.adapters


def quantized(weight: torch.Tensor) -> ops.Weight:
    """In FP8, unless the sizes do not suit the FP8 product."""
    fits = weight.shape[-1] % FP8_MULTIPLE == 0 and weight.shape[-2] % FP8_MULTIPLE == 0
    return ops.Fp8Matrix.of(weight) if fits else weight


def copied(source: WeightSource, name: str, shape: tuple[int, ...], place: Placement) -> torch.Tensor:
    """A copy: a mapped file that shrinks would kill the process."""
    return torch.empty(shape, dtype=place.dtype, device=place.device).copy_(source.read(name, shape))


def vector(source: WeightSource, name: str, size: int, place: Placement) -> torch.Tensor:
    return copied(source, f"{name}.weight", (size,), place)


def closing(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    residual: torch.Tensor,
    linear: Linear,
    ranks: RankGroup | None,
) -> Pair:
    """The product that ends a block, plus the residual. Several ranks sum their parts of it first."""
    if ranks is None:
        return ops.linear_add(x, residual, linear.weight, linear.bias)
    assert isinstance(x, torch.Tensor)
    return ranks.sum(ops.linear(x, linear.weight, linear.bias)), residual


class PagedAttention:
    """Grouped-query attention over pages. Writes K and V of its rows first, so a chunk attends to itself."""

    def __init__(self, source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> None:
        self._heads, self._kv_heads, self._dim = shape.heads, shape.kv_heads, shape.head_dim
        q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        names = {f"{prefix}.q_proj": q_rows, f"{prefix}.k_proj": kv_rows, f"{prefix}.v_proj": kv_rows}
        self._qkv = Linear(source, names, shape.hidden, place, bias=shape.qkv_bias)
        output = {f"{prefix}.o_proj": shape.hidden}
        self._output = Linear(source, output, q_rows, place, bias=shape.output_bias)
        self._q_norm = vector(source, f"{prefix}.q_norm", shape.head_dim, place) if shape.qk_norm else None
        self._k_norm = vector(source, f"{prefix}.k_norm", shape.head_dim, place) if shape.qk_norm else None
        self._ranks = place.ranks
        self._eps = shape.norm_eps
        self._scale = shape.head_dim**-0.5

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: Norm,
        step: Step,
        pages: LayerPages,
        cos_sin: torch.Tensor,
    ) -> Pair:
        heads, kv_heads = self._heads, self._kv_heads
        scales = step.adapter_scales
        if scales is None:
            qkv, total = ops.norm_linear(x, residual, norm.gain, norm.eps, self._qkv.weight, self._qkv.bias)
        else:
            normed, total = norm(x, residual)
            qkv = self._qkv(normed, scales)
        qkv = qkv.view(-1, heads + 2 * kv_heads, self._dim)
        q, k, v = qkv[:, :heads], qkv[:, heads:-kv_heads], qkv[:, -kv_heads:]
        out = ops.rotary_attention(
            q, k, v, step.positions, cos_sin, pages.k, pages.v, step.slot_mapping,
            step.block_tables, step.query_starts, step.context_lens, self._scale,
            max_query=step.max_query, decode_only=step.decode_only,
            q_weight=self._q_norm, k_weight=self._k_norm, eps=self._eps, scales=pages.scales,
        )  # fmt: skip
        out = out.view(-1, heads * self._dim)
        y, rest = closing(out, total, self._output, self._ranks)
        return (y if scales is None else y + self._output.low_rank(out, scales)), rest

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self._qkv, self._output)


class Mlp:
    """SiLU(gate) × up, then down."""

    def __init__(self, source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> None:
        inner = shape.inner
        names = {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
        self._gate_up = Linear(source, names, shape.hidden, place, bias=shape.mlp_bias)
        down = {f"{prefix}.down_proj": shape.hidden}
        self._down = Linear(source, down, inner, place, bias=shape.mlp_bias)
        self._ranks = place.ranks

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self._gate_up, self._down)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm, step: Step) -> Pair:
        weight, bias, scales = self._gate_up.weight, self._gate_up.bias, step.adapter_scales
        if scales is not None:
            normed, total = norm(x, residual)
            adapted = ops.silu_mul(self._gate_up(normed, scales))
            y, rest = ops.linear_add(adapted, total, self._down.weight, self._down.bias)
            return y + self._down.low_rank(adapted, scales), rest
        if bias is None:
            inner, total = ops.norm_gated(x, residual, norm.gain, norm.eps, weight)
        else:
            product, total = ops.norm_linear(x, residual, norm.gain, norm.eps, weight, bias)
            inner = ops.silu_mul(product)
        return closing(inner, total, self._down, self._ranks)


class DecoderLayer:
    """Norm, attention, norm, mixer. The residual is passed beside the rows, so each norm can add it."""

    def __init__(
        self, source: WeightSource, prefix: str, shape: TransformerShape, place: Placement, mixer: Mixer
    ) -> None:
        eps = shape.norm_eps
        self._input_norm = Norm(vector(source, f"{prefix}.input_layernorm", shape.hidden, place), eps)
        self._attention = PagedAttention(source, f"{prefix}.self_attn", shape, place)
        self._middle_norm = Norm(
            vector(source, f"{prefix}.post_attention_layernorm", shape.hidden, place), eps
        )
        self._mixer = mixer

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        step: Step,
        pages: LayerPages,
        cos_sin: torch.Tensor,
    ) -> Pair:
        x, residual = self._attention(x, residual, self._input_norm, step, pages, cos_sin)
        return self._mixer(x, residual, self._middle_norm, step)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (*self._attention.linears, *self._mixer.linears)
