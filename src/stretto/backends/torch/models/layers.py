"""Layers shared by all families, over a flat ragged batch: the rows of all spans, concatenated.

Knows weights and rows. A `Step` describes the rows; the operators come from `ops`, which selects Triton on a
GPU and plain torch elsewhere. Q, K and V are one product, gate and up another: fewer, larger matrices are
faster on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    write_first: bool = False  # rows read what other rows of the pass write
    adapter_scales: torch.Tensor | None = None  # [rows, adapters]; None: no row of the pass has an adapter
    half_done: torch.cuda.Event | None = None  # recorded after half of the layers
    work: ops.DecodeWork | None = None  # of decode attention without a window

    def of_rows(self, rows: torch.Tensor) -> Step:
        """For what follows attention, with these rows only."""
        scales = self.adapter_scales
        return self if scales is None else replace(self, adapter_scales=scales.index_select(0, rows))


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


def norm_gain(
    source: WeightSource, name: str, size: int, shape: TransformerShape, place: Placement
) -> torch.Tensor:
    """The gain of a norm; Gemma's files hold it less 1, which is exact in float32 only."""
    if shape.family != "gemma3":
        return vector(source, name, size, place)
    return 1.0 + copied(source, f"{name}.weight", (size,), replace(place, dtype=torch.float32))


def make_norm(source: WeightSource, name: str, shape: TransformerShape, place: Placement) -> Norm:
    """A norm of whole rows."""
    return Norm(norm_gain(source, name, shape.hidden, shape, place), shape.norm_eps)


def closing(
    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    residual: torch.Tensor,
    linear: Linear,
    ranks: RankGroup | None,
    *,
    adapter_scales: torch.Tensor | None = None,
    after: Norm | None = None,
) -> Pair:
    """The product that ends a block, with `after` applied to it, plus the residual.

    Several ranks sum their parts of the product first.
    """
    if ranks is None and after is None:
        y, rest = ops.linear_add(x, residual, linear.weight, linear.bias)
    else:
        assert isinstance(x, torch.Tensor)
        y, rest = ops.linear(x, linear.weight, linear.bias), residual
        y = y if ranks is None else ranks.sum(y)
    if adapter_scales is not None:
        assert isinstance(x, torch.Tensor)
        y = y + linear.low_rank(x, adapter_scales)
    return (y if after is None else after(y, None)[0]), rest


class PagedAttention:
    """Grouped-query attention over pages. Writes K and V of its rows first, so a chunk attends to itself.

    `after`: a norm of its output, before the residual is added.
    """

    def __init__(
        self,
        source: WeightSource,
        prefix: str,
        shape: TransformerShape,
        place: Placement,
        *,
        window: int = 0,
        after: Norm | None = None,
    ) -> None:
        self._heads, self._kv_heads, self._dim = shape.heads, shape.kv_heads, shape.head_dim
        q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        names = {f"{prefix}.q_proj": q_rows, f"{prefix}.k_proj": kv_rows, f"{prefix}.v_proj": kv_rows}
        self._qkv = Linear(source, names, shape.hidden, place, bias=shape.qkv_bias)
        output = {f"{prefix}.o_proj": shape.hidden}
        self._output = Linear(source, output, q_rows, place, bias=shape.output_bias)
        self._q_norm, self._k_norm = (
            norm_gain(source, f"{prefix}.{name}", shape.head_dim, shape, place) if shape.qk_norm else None
            for name in ("q_norm", "k_norm")
        )
        self._sinks = copied(source, f"{prefix}.sinks", (shape.heads,), place) if shape.sinks else None
        self._window, self._after, self._ranks = window, after, place.ranks
        self._eps, self._scale = shape.norm_eps, shape.attention_scale

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: Norm,
        step: Step,
        pages: LayerPages,
        cos_sin: torch.Tensor,
        keep: torch.Tensor | None = None,
    ) -> Pair:
        """Of all rows, or of those in `keep`; keys and values of all are written."""
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
            max_query=step.max_query, decode_only=step.decode_only, write_first=step.write_first,
            q_weight=self._q_norm, k_weight=self._k_norm, eps=self._eps, scales=pages.scales,
            window=self._window, sinks=self._sinks, work=step.work,
        )  # fmt: skip
        out = out.view(-1, heads * self._dim)
        if keep is not None:
            out, total = out.index_select(0, keep), total.index_select(0, keep)
            scales = None if scales is None else scales.index_select(0, keep)
            if not len(keep):
                return total, None
        return closing(out, total, self._output, self._ranks, adapter_scales=scales, after=self._after)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self._qkv, self._output)


class Mlp:
    """SiLU(gate) × up, or GELU(gate) × up, then down, and a norm where the family has one there."""

    def __init__(
        self,
        source: WeightSource,
        prefix: str,
        shape: TransformerShape,
        place: Placement,
        *,
        after: Norm | None = None,
    ) -> None:
        inner = shape.inner
        names = {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
        self._gate_up = Linear(source, names, shape.hidden, place, bias=shape.mlp_bias)
        down = {f"{prefix}.down_proj": shape.hidden}
        self._down = Linear(source, down, inner, place, bias=shape.mlp_bias)
        self._after, self._ranks = after, place.ranks
        self._gated = ops.gelu_mul if shape.activation == "gelu" else ops.silu_mul

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self._gate_up, self._down)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm, step: Step) -> Pair:
        weight, bias, scales = self._gate_up.weight, self._gate_up.bias, step.adapter_scales
        if scales is not None:
            normed, total = norm(x, residual)
            inner: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = self._gated(
                self._gate_up(normed, scales)
            )
        elif bias is None and self._gated is ops.silu_mul:
            inner, total = ops.norm_gated(x, residual, norm.gain, norm.eps, weight)
        else:
            product, total = ops.norm_linear(x, residual, norm.gain, norm.eps, weight, bias)
            inner = self._gated(product)
        return closing(inner, total, self._down, self._ranks, adapter_scales=scales, after=self._after)


class DecoderLayer:
    """Norm, attention, norm, mixer. The residual is passed beside the rows, so each norm can add it.

    `keep`: the rows that are read afterwards; the others end with their keys and values.
    `middle_norm`: its name in the file. `after`: a norm of what attention adds to the residual.
    """

    def __init__(
        self,
        source: WeightSource,
        prefix: str,
        shape: TransformerShape,
        place: Placement,
        mixer: Mixer,
        *,
        middle_norm: str = "post_attention_layernorm",
        after: Norm | None = None,
    ) -> None:
        self._input_norm = make_norm(source, f"{prefix}.input_layernorm", shape, place)
        window = shape.window_of(int(prefix.rpartition(".")[2]))
        self._attention = PagedAttention(
            source, f"{prefix}.self_attn", shape, place, window=window, after=after
        )
        self._middle_norm = make_norm(source, f"{prefix}.{middle_norm}", shape, place)
        self._mixer = mixer

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        step: Step,
        pages: LayerPages,
        cos_sin: torch.Tensor,
        keep: torch.Tensor | None = None,
    ) -> Pair:
        x, residual = self._attention(x, residual, self._input_norm, step, pages, cos_sin, keep)
        if keep is not None:
            step = step.of_rows(keep)
        return self._mixer(x, residual, self._middle_norm, step) if x.shape[0] else (x, residual)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (*self._attention.linears, *self._mixer.linears)
