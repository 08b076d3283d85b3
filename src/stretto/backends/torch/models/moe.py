"""Mixtures of experts: a router sends each row to a few experts, whose products run grouped by expert.

Qwen3-MoE has plain experts and a few dense layers; gpt-oss has biases, a clamped activation, and sinks and
sliding windows in its attention.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from stretto.backends.torch import ops
from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.layers import (
    DecoderLayer,
    Linear,
    Norm,
    Pair,
    Placement,
    Step,
    copied,
    quantized,
)
from stretto.backends.torch.models.qwen import qwen_layer
from stretto.backends.torch.packed_experts import separated
from stretto.backends.torch.weights import WeightSource
from stretto.errors import ModelFileError


class SparseMlp:
    def __init__(self, source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> None:
        experts = shape.experts
        if experts is None:
            raise ModelFileError("this model has no experts")
        count, inner, hidden = experts.count, experts.inner, shape.hidden
        self._top_k, self._renormalize, self._limit = experts.per_token, experts.renormalize, experts.limit
        router = {f"{prefix}.router" if experts.bias else f"{prefix}.gate": count}
        self._router = Linear(source, router, hidden, replace(place, fp8=False), bias=experts.bias)
        gate_up = torch.empty(count, 2 * inner, hidden, dtype=place.dtype, device=place.device)
        down = torch.empty(count, hidden, inner, dtype=place.dtype, device=place.device)
        name = f"{prefix}.experts"
        gate_up[:, :inner].copy_(source.experts(name, "gate_proj", (count, inner, hidden)))
        gate_up[:, inner:].copy_(source.experts(name, "up_proj", (count, inner, hidden)))
        down.copy_(source.experts(name, "down_proj", (count, hidden, inner)))
        self._gate_up: ops.Weight = quantized(gate_up) if place.fp8 else gate_up
        self._down: ops.Weight = quantized(down) if place.fp8 else down
        self._biases: tuple[torch.Tensor, torch.Tensor] | None = None
        if experts.bias:
            both = copied(source, f"{name}.gate_up_proj_bias", (count, 2 * inner), place)
            self._biases = separated(both), copied(source, f"{name}.down_proj_bias", (count, hidden), place)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return ()  # adapters of experts are not supported

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm, step: Step) -> Pair:
        x, total = norm(x, residual)
        x = ops.moe_experts(
            x, self._router(x), self._gate_up, self._down, self._top_k, self._renormalize,
            biases=self._biases, limit=self._limit,
        )  # fmt: skip
        return x, total


def moe_layer(source: WeightSource, prefix: str, shape: TransformerShape, place: Placement) -> DecoderLayer:
    assert shape.experts is not None
    if int(prefix.rpartition(".")[2]) in shape.experts.dense_layers:
        return qwen_layer(source, prefix, shape, place)
    return DecoderLayer(source, prefix, shape, place, SparseMlp(source, f"{prefix}.mlp", shape, place))
