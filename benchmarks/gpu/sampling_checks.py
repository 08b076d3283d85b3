"""Checks sampling against the exact distribution, the reference, and across batches; for kernels.py.

The chi-square statistic uses the Wilson-Hilferty approximation: a standard normal above Z_MAX fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from stretto.backends.torch.kernels import sampling
from stretto.backends.torch.kernels.topk_topp.exact import filter_bounds, ordered_key_reference
from stretto.backends.torch.ops.sampling import (
    EVERYTHING,
    count_tokens_reference,
    edit_reference,
    keep_reference,
    sample_reference,
)
from stretto.backends.torch.sampling_table import SamplingTable
from stretto.core.request import SamplingParams

Z_MAX = 4.5
SETTINGS = {
    "temperature": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.7),
    "min_p": SamplingParams(min_p=0.1, temperature=1.5),
    "all": SamplingParams(top_k=12, top_p=0.9, min_p=0.02, temperature=0.7),
    "penalties": SamplingParams(repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1),
    "bias": SamplingParams(logit_bias={0: -100.0, 3: 2.0}, min_tokens=10**6, stop_token_ids=frozenset({5})),
}
Check = Callable[[], str]  # returns a summary; raises AssertionError


def checks(*, device: str, tiny: bool) -> Iterator[tuple[str, Check]]:
    for name, params in SETTINGS.items():
        yield f"sampling chi-square {name}", lambda p=params: chi_square(p, device=device, tiny=tiny)
    yield "sampling filter bounds", lambda: same_filter_bounds(device=device, tiny=tiny)
    yield "sampling reference", lambda: same_as_reference(device=device, tiny=tiny)
    yield "sampling batch independence", lambda: batch_independence(device=device, tiny=tiny)
    yield "sampling counts", lambda: same_counts(device=device)
    yield "sampling bad rows", lambda: bad_rows(device=device)


def _table(params: list[SamplingParams], vocab: int, device: str) -> SamplingTable:
    table = SamplingTable.allocate(len(params), vocab=vocab, context_max=64, device=device, biases_max=16)
    for slot, one in enumerate(params):
        table.bind(slot, one, [1, 2, 2, 3])
        words = torch.randint(-(2**31), 2**31 - 1, (table.masks.shape[1],), dtype=torch.int32)
        table.set_mask(slot, words)
    return table


def chi_square(params: SamplingParams, *, device: str, tiny: bool) -> str:
    vocab, rows, rounds = 40, 12 if tiny else 4096, 2 if tiny else 64
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(3)).to(device) * 2
    table = _table([params], vocab, device)
    slots = torch.zeros(rows, dtype=torch.int64, device=device)
    seen = torch.zeros(vocab, dtype=torch.int64, device=device)
    for number in range(rounds):
        index = torch.arange(rows, device=device) + number * rows
        ids = sampling.sample_ids(logits.expand(rows, vocab).contiguous(), table, index, slots, EVERYTHING)
        seen += torch.bincount(ids, minlength=vocab)
    kept = keep_reference(edit_reference(logits, table, slots[:1], slots[:1], EVERYTHING), table, slots[:1])
    expected = (kept.double() / max(params.temperature, 1e-5)).softmax(-1)[0] * rows * rounds
    return _judge(seen.double().cpu(), expected.cpu())


def _judge(seen: Tensor, expected: Tensor) -> str:
    assert not seen[expected == 0].any(), "an excluded token was drawn"
    order = expected.argsort()
    seen, expected = seen[order], expected[order]
    rare = expected.cumsum(0) < 10  # pooled, so that the approximation holds
    seen = torch.cat([seen[rare].sum()[None], seen[~rare]])
    expected = torch.cat([expected[rare].sum()[None], expected[~rare]])
    seen, expected = seen[expected > 0], expected[expected > 0]
    free = max(len(expected) - 1, 1)
    statistic = ((seen - expected) ** 2 / expected).sum().item()
    z = ((statistic / free) ** (1 / 3) - 1 + 2 / (9 * free)) / math.sqrt(2 / (9 * free))
    assert z < Z_MAX, f"chi-square {statistic:.1f} on {free} degrees of freedom"
    return f"chi-square {statistic:.1f} / {free}"


def _rows(vocab: int, rows: int, device: str, seed: int) -> Tensor:
    """Flat rows, peaked rows, and rows with many ties, as in bfloat16."""
    generator = torch.Generator(device).manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator, device=device) * 2
    logits[1::3] = logits[1::3] * 0.2
    logits[2::3] = (logits[2::3] * 4).round()
    return logits.bfloat16()


def _variety(rows: int) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=(0.0, 0.7, 1.0, 1.3)[row % 4],
            top_k=(0, 1, 40, 5000, 0)[row % 5],
            top_p=(1.0, 0.9, 0.5, 0.999)[row % 4 if row % 7 else 1],
            min_p=(0.0, 0.0, 0.05)[row % 3],
            seed=row * 977 - 3,
            repeat_penalty=(1.0, 1.2)[row % 2],
            presence_penalty=(0.0, 0.5)[row // 2 % 2],
            grammar=("", "yes")[row // 3 % 2],
            logit_bias={7: 3.0, 9: -100.0} if row % 3 == 0 else {},
        )
        for row in range(rows)
    ]


def same_filter_bounds(*, device: str, tiny: bool) -> str:
    """The kept sets equal those of the sorted reference; because of rounding they may differ by one token."""
    vocab, rows = (700, 24) if tiny else (151_936, 96)
    logits = _rows(vocab, rows, device, 5).float()
    params = [
        SamplingParams(
            top_k=(0, 3, 50, 6000)[row % 4],
            top_p=(0.3, 1.0, 0.95, 0.8, 0.999)[row % 5],
            min_p=(0, 0.02)[row % 2],
        )
        for row in range(rows)
    ]
    table = _table(params, vocab, device)
    slots = torch.arange(rows, device=device)
    bounds, last_ids = filter_bounds(logits, table, slots)
    key, token = ordered_key_reference(logits), torch.arange(vocab, device=device)
    kept = (key > bounds[:, None]) | ((key == bounds[:, None]) & (token <= last_ids[:, None]))
    wrong = (kept != (keep_reference(logits, table, slots) > -torch.inf)).sum(-1)
    sizes = kept.sum(-1)
    assert (wrong <= 1 + sizes // 5000).all(), f"sets differ by {wrong.max().item()} tokens"
    return f"{int((wrong > 0).sum())} of {rows} rows differ, by {wrong.max().item()} at most"


def same_as_reference(*, device: str, tiny: bool) -> str:
    vocab, rows = (700, 12) if tiny else (151_936, 128)
    logits = _rows(vocab, rows, device, 11)
    table = _table(_variety(rows), vocab, device)
    slots, index = torch.arange(rows, device=device), torch.arange(rows, device=device) * 3
    got = sampling.sample_ids(logits, table, index, slots, EVERYTHING)
    expected = sample_reference(logits, table, index, slots, EVERYTHING)
    same = int((got == expected).sum())
    assert same >= rows - max(rows // 64, 0), f"{rows - same} of {rows} tokens differ from the reference's"
    return f"{same} of {rows} tokens equal"


def batch_independence(*, device: str, tiny: bool) -> str:
    vocab, rows = (700, 6) if tiny else (151_936, 64)
    logits = _rows(vocab, rows, device, 17)
    table = _table(_variety(rows), vocab, device)
    slots, index = torch.arange(rows, device=device), torch.arange(rows, device=device) + 5
    together = sampling.sample_ids(logits, table, index, slots, EVERYTHING)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).to(device)
    shuffled = sampling.sample_ids(logits[order], table, index[order], slots[order], EVERYTHING)
    alone = [
        sampling.sample_ids(logits[r : r + 1], table, index[r : r + 1], slots[r : r + 1], EVERYTHING)
        for r in range(rows)
    ]
    assert torch.equal(together[order], shuffled), "the order of rows changed a token"
    assert torch.equal(together, torch.cat(alone)), "the size of the batch changed a token"
    return f"{rows} rows, three batches"


def same_counts(*, device: str) -> str:
    params = [SamplingParams(repeat_penalty=1.1, repeat_last_n=(-1, 3, 5)[row % 3]) for row in range(9)]
    ours, plain = _table(params, 50, device), _table(params, 50, device)
    slots = torch.arange(9, device=device)
    for length in range(4, 30):
        ids = (slots * 7 + length * 3) % 11
        ids[length % 9] = -1
        lengths = torch.full_like(slots, length)
        sampling.count_tokens(ours, slots, ids, lengths)
        count_tokens_reference(plain, slots, ids, lengths)
    assert torch.equal(ours.counts, plain.counts), "counts differ"
    assert torch.equal(ours.history, plain.history), "histories differ"
    return "26 steps"


def bad_rows(*, device: str) -> str:
    logits = torch.full((3, 100), torch.nan, device=device)
    logits[1, 7], logits[2, 3], logits[2, 4] = 1.0, torch.inf, -5.0
    table = SamplingTable.allocate(3, vocab=100, context_max=8, device=device)
    slots = torch.arange(3, device=device)
    ids = sampling.sample_ids(logits, table, slots, slots, EVERYTHING).tolist()
    assert ids == [-1, 7, 4], ids
    return "NaN and infinity"
