import pytest
import torch

from stretto.backends.torch.ops import moe_experts, silu_mul


@pytest.mark.parametrize("renormalize", [True, False])
def test_rows_are_the_weighted_sum_of_their_experts(renormalize):
    x, logits = torch.randn(7, 12, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    gate_up, down = torch.randn(5, 16, 12, dtype=torch.float64), torch.randn(5, 12, 8, dtype=torch.float64)
    out = moe_experts(x, logits, gate_up, down, 2, renormalize)
    shares = logits.softmax(-1)
    for row in range(7):
        best = shares[row].argsort(descending=True)[:2]
        weights = shares[row, best] / (shares[row, best].sum() if renormalize else 1)
        expected = sum(
            w * (silu_mul(x[row : row + 1] @ gate_up[e].T) @ down[e].T)[0]
            for w, e in zip(weights, best, strict=True)
        )
        torch.testing.assert_close(out[row], expected)
