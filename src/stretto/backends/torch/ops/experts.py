"""Mixture of experts: each row is computed by the `top_k` experts selected by its router logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stretto.backends.torch.config import CLAMPED_ALPHA
from stretto.backends.torch.ops.activation import silu_mul_reference
from stretto.backends.torch.ops.fp8 import Fp8Matrix
from stretto.backends.torch.ops.linear import Weight


def moe_experts(
    x: Tensor,
    router_logits: Tensor,
    w_gate_up: Weight,
    w_down: Weight,
    top_k: int,
    renormalize: bool,
    *,
    biases: tuple[Tensor, Tensor] | None = None,
    limit: float = 0.0,
) -> Tensor:
    """x [rows, hidden], router_logits [rows, experts], w_gate_up [experts, 2 · inner, hidden] (gates first),
    w_down [experts, hidden, inner]: [rows, hidden]. `renormalize`: the chosen weights sum to 1. `biases`: of
    both products, [experts, 2 · inner] and [experts, hidden]. `limit`: see `clamped_reference`; 0: SiLU.
    """
    if x.is_cuda:
        from stretto.backends.torch.kernels import experts as kernel

        weights, chosen = kernel.route(router_logits, top_k, renormalize=renormalize)
        if isinstance(w_gate_up, Fp8Matrix) and isinstance(w_down, Fp8Matrix):
            scales = (w_gate_up.scales, w_down.scales)
            matrices = (w_gate_up.data, w_down.data)
            return kernel.moe_experts(
                x, weights, chosen, *matrices, scales=scales, biases=biases, limit=limit
            )
        assert isinstance(w_gate_up, Tensor)
        assert isinstance(w_down, Tensor)
        return kernel.moe_experts(x, weights, chosen, w_gate_up, w_down, biases=biases, limit=limit)
    w_gate_up, w_down = _widened(w_gate_up, x.dtype), _widened(w_down, x.dtype)
    weights, chosen = route(router_logits, top_k, renormalize=renormalize)
    return moe_experts_reference(x, weights, chosen, w_gate_up, w_down, biases=biases, limit=limit)


def _widened(weight: Weight, dtype: torch.dtype) -> Tensor:
    return weight.widened(dtype) if isinstance(weight, Fp8Matrix) else weight


def route(router_logits: Tensor, top_k: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Weights and numbers of the chosen experts, [rows, top_k] each."""
    wide = torch.promote_types(router_logits.dtype, torch.float32)
    weights, chosen = router_logits.to(wide).softmax(-1).topk(top_k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, chosen


def moe_experts_reference(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    *,
    biases: tuple[Tensor, Tensor] | None = None,
    limit: float = 0.0,
) -> Tensor:
    out = torch.zeros_like(x, dtype=weights.dtype)
    first, second = biases if biases is not None else (None, None)
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        both = functional.linear(x[rows], w_gate_up[expert], None if first is None else first[expert])
        inner = clamped_reference(both, limit) if limit else silu_mul_reference(both)
        answer = functional.linear(inner, w_down[expert], None if second is None else second[expert])
        out.index_add_(0, rows, answer.to(out.dtype) * weights[rows, place, None])
    return out.to(x.dtype)


def clamped_reference(x: Tensor, limit: float) -> Tensor:
    """gate · sigmoid(alpha · gate) · (up + 1), with gates up to `limit` and ups within it; gates first."""
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(CLAMPED_ALPHA * gate) * (up + 1)).to(x.dtype)
