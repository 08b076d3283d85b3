"""Mixture of experts: each row is computed by the `top_k` experts selected by its router logits."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.backends.torch.ops.activation import silu_mul_reference
from stretto.backends.torch.ops.fp8 import Fp8Matrix
from stretto.backends.torch.ops.linear import Weight


def moe_experts(
    x: Tensor, router_logits: Tensor, w_gate_up: Weight, w_down: Weight, top_k: int, renormalize: bool
) -> Tensor:
    """x [rows, hidden], router_logits [rows, experts], w_gate_up [experts, 2 · inner, hidden] (gates first),
    w_down [experts, hidden, inner]: [rows, hidden]. `renormalize`: the chosen weights sum to 1.
    """
    if x.is_cuda:
        from stretto.backends.torch.kernels import experts as kernel

        weights, chosen = kernel.route(router_logits, top_k, renormalize=renormalize)
        if isinstance(w_gate_up, Fp8Matrix) and isinstance(w_down, Fp8Matrix):
            scales = (w_gate_up.scales, w_down.scales)
            return kernel.moe_experts(x, weights, chosen, w_gate_up.data, w_down.data, scales=scales)
        assert isinstance(w_gate_up, Tensor)
        assert isinstance(w_down, Tensor)
        return kernel.moe_experts(x, weights, chosen, w_gate_up, w_down)
    w_gate_up, w_down = _widened(w_gate_up, x.dtype), _widened(w_down, x.dtype)
    weights, chosen = route(router_logits, top_k, renormalize=renormalize)
    return moe_experts_reference(x, weights, chosen, w_gate_up, w_down)


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
    x: Tensor, weights: Tensor, chosen: Tensor, w_gate_up: Tensor, w_down: Tensor
) -> Tensor:
    out = torch.zeros_like(x, dtype=weights.dtype)
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        inner = silu_mul_reference(x[rows] @ w_gate_up[expert].T)
        out.index_add_(0, rows, (inner @ w_down[expert].T).to(out.dtype) * weights[rows, place, None])
    return out.to(x.dtype)
