import torch

from stretto.backends.torch.ops import add_rms_norm, rms_norm, silu_mul


def test_matches_torch_in_float32():
    x, weight = torch.randn(5, 48), torch.rand(48) + 0.5
    expected = torch.nn.functional.rms_norm(x, (48,), weight, 1e-6)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected)


def test_the_sum_is_rounded_before_it_is_normalized():
    x, residual, weight = (
        torch.randn(3, 64).bfloat16(),
        torch.randn(3, 64).bfloat16(),
        torch.ones(64).bfloat16(),
    )
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(total, weight, 1e-6))


def test_takes_rows_of_a_wider_tensor():
    wide, weight = torch.randn(4, 100), torch.rand(40)
    torch.testing.assert_close(
        rms_norm(wide[:, 30:70], weight, 1e-5), rms_norm(wide[:, 30:70].clone(), weight, 1e-5)
    )


def test_silu_mul_takes_gates_first():
    x = torch.randn(4, 10)
    torch.testing.assert_close(silu_mul(x), torch.nn.functional.silu(x[:, :5]) * x[:, 5:])
