import pytest
import torch
from torch.nn import functional

from stretto.backends.torch.ops import (
    linear,
    linear_add,
    norm_gated,
    norm_linear,
    paged_attention,
    rms_norm,
    rotary_attention,
    rotary_write,
    silu_mul,
)
from stretto.backends.torch.ops.linear import norm_linear_reference


def _weights(outs=12, width=16):
    return torch.randn(outs, width), torch.rand(width) + 0.5


@pytest.mark.parametrize("biased", [True, False])
def test_norm_linear_returns_the_product_of_the_norm_and_the_sum(biased):
    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    weight, gain = _weights()
    bias = torch.randn(12) if biased else None
    out, total = norm_linear(x, residual, gain, 1e-6, weight, bias)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(out, functional.linear(rms_norm(total, gain, 1e-6), weight, bias))


def test_without_a_residual_the_rows_are_the_sum():
    x, (weight, gain) = torch.randn(2, 16), _weights()
    out, total = norm_linear(x, None, gain, 1e-6, weight)
    assert torch.equal(total, x)
    torch.testing.assert_close(out, rms_norm(x, gain, 1e-6) @ weight.T)


def test_the_gated_product_is_silu_of_its_first_half_times_the_second():
    x, residual, (weight, gain) = torch.randn(3, 16), torch.randn(3, 16), _weights()
    out, total = norm_gated(x, residual, gain, 1e-6, weight)
    torch.testing.assert_close(out, silu_mul(rms_norm(total, gain, 1e-6) @ weight.T))
    assert torch.equal(out, norm_linear_reference(x, residual, gain, 1e-6, weight, gated=True)[0])


def test_a_pair_adds_up_to_the_product_and_the_residual():
    x, residual, (weight, _) = torch.randn(3, 16), torch.randn(3, 12), _weights()
    first, second = linear_add(x, residual, weight)
    total = first if second is None else first + second
    torch.testing.assert_close(total, linear(x, weight) + residual)


def test_half_precision_rounds_where_transformers_does():
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    x, gain = torch.randn(5, 64).bfloat16() * 3, (torch.rand(64) + 0.5).bfloat16()
    theirs = Qwen3RMSNorm(64, eps=1e-6).bfloat16()
    with torch.no_grad():
        theirs.weight.copy_(gain)
        assert torch.equal(rms_norm(x, gain, 1e-6), theirs(x))
    gate_up = torch.randn(5, 64).bfloat16()
    assert torch.equal(silu_mul(gate_up), functional.silu(gate_up[:, :32]) * gate_up[:, 32:])
    q, angles = torch.randn(5, 2, 64).bfloat16(), torch.rand(5, 32) * 6
    cos, sin = (torch.cat([turn, turn], 1).bfloat16() for turn in (angles.cos(), angles.sin()))
    expected, _ = apply_rotary_pos_emb(q, q, cos, sin)
    pages = torch.zeros(1, 8, 2, 64).bfloat16()
    table, rows = torch.cat([angles.cos(), angles.sin()], 1), torch.arange(5)
    assert torch.equal(rotary_write(q, q, q, rows, table, pages, pages.clone(), rows), expected)


def test_rotary_attention_is_the_write_and_then_the_attention():
    q, k, v = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    angles = torch.rand(8, 8)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
    pools = [torch.randn(4, 4, 2, 16).repeat(1, 1, 1, 1) for _ in range(2)]
    positions, slots = torch.tensor([5, 2]), torch.tensor([5, 10])
    tables = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    tail = (tables, torch.tensor([0, 1, 2]), torch.tensor([6, 3], dtype=torch.int32), 0.25)
    ours = [pool.clone() for pool in pools]
    out = rotary_attention(q, k, v, positions, cos_sin, *ours, slots, *tail, max_query=1, decode_only=True)
    turned = rotary_write(q, k, v, positions, cos_sin, *pools, slots)
    assert torch.equal(out, paged_attention(turned, *pools, *tail, max_query=1, decode_only=True))
    assert torch.equal(ours[0], pools[0])
