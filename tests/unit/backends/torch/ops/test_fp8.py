import pytest
import torch

from stretto.backends.torch.ops import (
    Fp8Matrix,
    KvScales,
    fp8,
    linear,
    linear_add,
    moe_experts,
    norm_gated,
    norm_linear,
    paged_attention,
    rotary_write,
    silu_mul,
)
from stretto.backends.torch.ops.fp8 import FP8, KV_ROOM, head_scales, quantize_heads, quantize_rows
from stretto.backends.torch.weights import scaled
from stretto.errors import ModelFileError

ROUNDING = 2**-4  # half a step between two FP8 numbers, relative


def test_rows_have_scales_of_their_own():
    matrix = torch.randn(6, 64) * torch.tensor([1e-6, 1e-3, 0.1, 1.0, 50.0, 1e4]).unsqueeze(1)
    found = Fp8Matrix.of(matrix)
    assert found.data.dtype == FP8
    peaks = found.data.float().abs().amax(1)
    assert ((peaks > 208) & (peaks <= 448)).all()  # one octave, rounded
    error = (found.widened(torch.float32) - matrix).abs().amax(1)
    assert (error <= ROUNDING * matrix.abs().amax(1)).all()


def test_weights_have_the_scale_that_loses_least():
    torch.manual_seed(3)
    for matrix, share in ((torch.randn(40, 256), 0.99), (torch.randint(-15, 16, (40, 64)) * 0.013, 0.2)):
        plain, scales = quantize_rows(matrix)
        before = (plain.float() * scales - matrix).square().sum(1)
        after = (Fp8Matrix.of(matrix).widened(torch.float32) - matrix).square().sum(1)
        assert (after <= before * 1.0001).all()
        assert after.mean() < share * before.mean()


def test_a_large_matrix_is_quantized_in_parts(monkeypatch):
    matrix = torch.randn(3, 10, 32)
    whole = Fp8Matrix.of(matrix)
    monkeypatch.setattr(fp8, "PART_NUMBERS", 100)
    parts = Fp8Matrix.of(matrix)
    assert torch.equal(whole.data.view(torch.uint8), parts.data.view(torch.uint8))
    assert torch.equal(whole.scales, parts.scales)


def test_a_matrix_of_zeros_stays_zero():
    assert not Fp8Matrix.of(torch.zeros(2, 16)).widened(torch.float32).any()


@pytest.mark.parametrize("rows", [1, 5])
def test_products_are_near_those_of_the_unrounded_matrices(rows):
    x, residual, gain = torch.randn(rows, 128), torch.randn(rows, 128), torch.rand(128) + 0.5
    both, down, bias = torch.randn(64, 128) / 11, torch.randn(128, 32) / 6, torch.randn(64)
    small_both, small_down = Fp8Matrix.of(both), Fp8Matrix.of(down)

    def near(got, expected):
        assert (got - expected).norm() < 0.06 * expected.norm()

    near(linear(x, small_both, bias), linear(x, both, bias))
    got, total = norm_linear(x, residual, gain, 1e-6, small_both, bias)
    expected, sums = norm_linear(x, residual, gain, 1e-6, both, bias)
    near(got, expected)
    assert torch.equal(total, sums)
    inner, total = norm_gated(x, residual, gain, 1e-6, small_both)
    out, more = linear_add(inner, total, small_down)
    expected = silu_mul(norm_linear(x, residual, gain, 1e-6, both)[0]) @ down.T + sums
    near(out + (0 if more is None else more), expected)


def test_experts_in_fp8():
    x, logits = torch.randn(7, 32), torch.randn(7, 5)
    gate_up, down = torch.randn(5, 32, 32) / 6, torch.randn(5, 32, 16) / 4
    got = moe_experts(x, logits, Fp8Matrix.of(gate_up), Fp8Matrix.of(down), 2, True)
    expected = moe_experts(x, logits, gate_up, down, 2, True)
    assert (got - expected).norm() < 0.06 * expected.norm()


def test_heads_have_room_and_are_clamped_beyond():
    x = torch.randn(9, 2, 16) * torch.tensor([0.01, 30.0]).view(1, 2, 1)
    scales = head_scales(x)
    small = quantize_heads(x, scales)
    assert (small.float().abs().amax((0, 2)) <= 448 / KV_ROOM).all()
    huge = quantize_heads(x * 1e4, scales).float()
    assert huge.isfinite().all()
    assert huge.abs().max() == 448


def test_attention_reads_what_was_written_in_fp8():
    rows, heads, kv_heads, dim, page = 6, 4, 2, 16, 4
    product = torch.randn(rows, heads + 2 * kv_heads, dim)
    q, k, v = product.split([heads, kv_heads, kv_heads], dim=1)
    still = torch.cat([torch.ones(rows, dim // 2), torch.zeros(rows, dim // 2)], 1)
    places = torch.arange(rows)
    tail = (
        torch.tensor([[0, 1]], dtype=torch.int32),
        torch.tensor([0, rows], dtype=torch.int32),
        torch.tensor([rows], dtype=torch.int32),
        0.25,
    )

    def run(dtype, scales):
        pages = [torch.zeros(2, page, kv_heads, dim).to(dtype) for _ in range(2)]
        turned = rotary_write(q, k, v, places, still, *pages, places, scales=scales)
        return paged_attention(turned, *pages, *tail, max_query=rows, decode_only=False, scales=scales)

    expected = run(torch.float32, None)
    got = run(FP8, KvScales(head_scales(k), head_scales(v)))
    assert (got - expected).norm() < 0.06 * expected.norm()


def test_scales_of_a_file_are_for_the_tensor_for_rows_or_for_blocks():
    matrix = (torch.randn(6, 10) * 50).to(FP8)
    for scales, spread in (
        (torch.tensor(0.5), torch.full((6, 10), 0.5)),
        (torch.rand(6, 1), None),
        (torch.rand(2, 3), None),  # blocks of 3 × 4
    ):
        if spread is None:
            spread = scales.repeat_interleave(6 // len(scales), 0)
            spread = spread.repeat_interleave(4, 1)[:, :10] if scales.shape[1] > 1 else spread.expand(6, 10)
        assert torch.equal(scaled(matrix, scales, "w"), matrix.float() * spread)
    with pytest.raises(ModelFileError, match="scales of w"):
        scaled(matrix, torch.rand(4, 1), "w")
