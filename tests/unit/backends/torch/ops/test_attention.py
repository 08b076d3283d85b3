import pytest
import torch

from stretto.backends.torch.ops import paged_attention, rotary_write

HEADS, KV_HEADS, DIM = 6, 2, 16


def _paged(spans, page):
    """Spans of (rows, context) with keys on shuffled pages; everything else is NaN."""
    needed = [-(-context // page) for _, context in spans]
    order = torch.randperm(sum(needed) + 2)
    k_pages, v_pages = (torch.full((len(order), page, KV_HEADS, DIM), torch.nan) for _ in range(2))
    tables = torch.full((len(spans), max(needed) + 1), int(order[-1]), dtype=torch.int32)
    contexts, taken = [], 0
    for span, (_, context) in enumerate(spans):
        tables[span, : needed[span]] = order[taken : taken + needed[span]].int()
        keys, values = torch.randn(context, KV_HEADS, DIM), torch.randn(context, KV_HEADS, DIM)
        for token in range(context):
            place = (int(order[taken + token // page]), token % page)
            k_pages[place], v_pages[place] = keys[token], values[token]
        contexts.append((keys, values))
        taken += needed[span]
    return k_pages, v_pages, tables, contexts


@pytest.mark.parametrize("page", [1, 4, 16])
def test_mixed_spans_equal_dense_attention(page):
    spans = [(1, 9), (5, 5), (4, 17), (1, 1), (16, 32)]
    k_pages, v_pages, tables, contexts = _paged(spans, page)
    rows = [count for count, _ in spans]
    q = torch.randn(sum(rows), HEADS, DIM)
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    lengths = torch.tensor([context for _, context in spans], dtype=torch.int32)
    out = paged_attention(q, k_pages, v_pages, tables, starts, lengths, 0.25, max_query=16, decode_only=False)
    for span, (keys, values) in enumerate(contexts):
        mine = q[starts[span] : starts[span + 1]]
        hidden = torch.ones(len(mine), len(keys), dtype=torch.bool).tril(len(keys) - len(mine))
        expected = torch.nn.functional.scaled_dot_product_attention(
            mine.transpose(0, 1),
            keys.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0),
            values.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0),
            attn_mask=hidden,
            scale=0.25,
        )
        torch.testing.assert_close(out[starts[span] : starts[span + 1]], expected.transpose(0, 1))


def test_a_padding_span_changes_no_pages():
    k_pages, v_pages, tables, _ = _paged([(1, 3), (1, 3)], 4)
    q = torch.randn(2, HEADS, DIM)
    lengths = torch.tensor([3, 0], dtype=torch.int32)
    out = paged_attention(
        q, k_pages, v_pages, tables, torch.tensor([0, 1, 2]), lengths, 1.0, max_query=1, decode_only=True
    )
    assert out.isfinite().all()


def test_rotary_write_rotates_by_position_and_skips_padding():
    rows, page = 4, 2
    fused = torch.randn(rows, (HEADS + 2 * KV_HEADS) * DIM)
    q, k, v = fused.view(rows, -1, DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    angles = torch.rand(10, DIM // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
    k_pages, v_pages = torch.zeros(4, page, KV_HEADS, DIM), torch.zeros(4, page, KV_HEADS, DIM)
    positions = torch.tensor([0, 7, 7, 3])
    slots = torch.tensor([3, -1, 0, 6])
    out = rotary_write(q, k, v, positions, cos_sin, k_pages, v_pages, slots)
    turned = torch.view_as_complex(torch.stack(q.chunk(2, -1), -1).contiguous()) * torch.polar(
        torch.ones(rows, DIM // 2), angles[positions]
    ).unsqueeze(1)
    torch.testing.assert_close(out, torch.cat([turned.real, turned.imag], -1))
    assert torch.equal(v_pages[1, 1], v[0])
    assert torch.equal(v_pages[0, 0], v[2])
    assert torch.equal(v_pages[3, 0], v[3])
    assert v_pages.count_nonzero() == 3 * KV_HEADS * DIM
    assert k_pages.count_nonzero() == 3 * KV_HEADS * DIM


def test_heads_are_normalized_before_the_rotation():
    q, k = torch.randn(2, HEADS, DIM) * 9, torch.randn(2, KV_HEADS, DIM)
    still = torch.cat([torch.ones(1, DIM // 2), torch.zeros(1, DIM // 2)], 1)
    pages = torch.zeros(1, 2, KV_HEADS, DIM)
    where = (torch.zeros(2, dtype=torch.long), still, pages, pages.clone(), torch.arange(2))
    weight = torch.full((DIM,), 2.0)
    out = rotary_write(q, k, k, *where, q_weight=weight, k_weight=weight, eps=0.0)
    torch.testing.assert_close(out.square().mean(-1), torch.full((2, HEADS), 4.0))
    torch.testing.assert_close(pages.square().mean(-1), torch.full((1, 2, KV_HEADS), 4.0))
