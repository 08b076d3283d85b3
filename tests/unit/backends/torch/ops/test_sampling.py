import math
from array import array

import numpy as np
import pytest
import torch

from stretto.backends.sampling import Sampler
from stretto.backends.torch.ops import SamplingMode, SamplingTable, count_tokens, sample
from stretto.backends.torch.ops.philox import gumbel, philox
from stretto.backends.torch.ops.sampling import EVERYTHING, edit_reference, keep_reference
from stretto.core.request import Request, SamplingParams

VOCAB = 60


def _table(params, tokens=(1, 2, 2), **extra):
    table = SamplingTable.allocate(len(params), vocab=VOCAB, context_max=64, device="cpu")
    for slot, one in enumerate(params):
        table.bind(slot, one, tokens, **extra)
    return table


def _logits(rows, seed=0):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_philox_gives_the_published_answer():
    words = philox(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 1)
    assert words.flatten().tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_gumbel_noise_has_its_mean_and_spread():
    noise = gumbel(torch.tensor([11]), torch.tensor([3]), 200_000)
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.std().item() - math.pi / math.sqrt(6)) < 0.01


def test_a_row_is_the_same_in_any_batch():
    params = [SamplingParams(seed=seed, top_p=0.9) for seed in range(8)]
    table, logits, index = _table(params), _logits(8), torch.arange(8)
    together = sample(logits, table, index).ids
    order = torch.tensor([5, 2, 7])
    assert torch.equal(sample(logits[order], table, index[order], slots=order).ids, together[order])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.6),
        SamplingParams(min_p=0.1, temperature=1.4),
        SamplingParams(top_k=9, top_p=0.8, min_p=0.05, temperature=0.5),
    ],
)
def test_draws_follow_the_filtered_distribution(params):
    rows = 10_000
    table, slots = _table([params]), torch.zeros(rows, dtype=torch.long)
    logits = _logits(1)
    ids = sample(logits.expand(rows, VOCAB), table, torch.arange(rows), slots=slots).ids
    seen = torch.bincount(ids, minlength=VOCAB) / rows
    expected = (keep_reference(logits, table, slots[:1]) / params.temperature).softmax(-1)[0]
    assert not seen[expected == 0].any()
    assert (seen - expected).abs().sum() < 0.07


def test_edits_equal_those_of_the_host_sampler():
    """At temperature 0 both samplers must choose the same token after the same edits."""
    params = [
        SamplingParams(temperature=0, repeat_penalty=1.5, repeat_last_n=5),
        SamplingParams(temperature=0, frequency_penalty=0.6, presence_penalty=0.4, repeat_last_n=-1),
        SamplingParams(temperature=0, logit_bias={4: 5.0, 9: -100.0}),
        SamplingParams(temperature=0, min_tokens=4, stop_token_ids=frozenset({7, 8, 9})),
    ]
    table = _table(params)
    samplers = [Sampler(Request("r", array("i", [1, 2, 2]), one), array("i"), vocab=VOCAB) for one in params]
    slots = torch.arange(len(params))
    for step in range(25):
        logits = _logits(len(params), seed=step)
        ids = sample(logits, table, torch.full((len(params),), step)).ids
        expected = [one.sample(row, step).token for one, row in zip(samplers, logits.numpy(), strict=True)]
        assert ids.tolist() == expected
        count_tokens(table, slots, ids, torch.full((len(params),), 3 + step))
        for one, token in zip(samplers, expected, strict=True):
            one.accept(token)


def test_ignore_eos_and_suppressed_tokens_are_never_chosen():
    table = _table(
        [SamplingParams(temperature=0, ignore_eos=True)], eos=frozenset({3}), suppressed=frozenset({4})
    )
    logits = _logits(1)
    logits[0, 3], logits[0, 4], logits[0, 5] = 50.0, 40.0, 30.0
    assert sample(logits, table, torch.tensor([0])).ids.item() == 5


def test_a_mask_leaves_only_its_tokens():
    table = _table([SamplingParams(grammar="g"), SamplingParams()])
    bits = np.zeros(-(-VOCAB // 32) * 4, dtype=np.uint8)
    bits[17 // 8] |= 1 << (17 % 8)
    table.set_mask(0, torch.from_numpy(bits.view(np.int32)))
    edited = edit_reference(_logits(2), table, torch.zeros(2), torch.arange(2), EVERYTHING)
    assert edited[0].isfinite().nonzero().tolist() == [[17]]
    assert edited[1].isfinite().all()


def test_ties_go_to_lower_ids():
    table = _table([SamplingParams(top_k=3), SamplingParams(top_p=0.04)])
    kept = keep_reference(torch.zeros(2, VOCAB), table, torch.arange(2))
    assert kept.isfinite().sum(-1).tolist() == [3, 3]
    assert kept[:, :3].isfinite().all()


def test_logprobs_are_those_of_the_untouched_logits():
    table, logits = _table([SamplingParams(temperature=0, logit_bias={7: 100.0})]), _logits(1)
    taken = sample(logits, table, torch.tensor([0]), mode=SamplingMode(biases=True, logprobs=3))
    exact = logits.log_softmax(-1)
    assert taken.ids.item() == 7
    torch.testing.assert_close(taken.logprobs, exact[:, 7])
    assert taken.top_ids.tolist() == exact.topk(3).indices.tolist()
    torch.testing.assert_close(taken.top_logprobs, exact.topk(3).values)


def test_a_row_without_a_finite_logit_gives_no_token():
    logits = torch.full((2, VOCAB), torch.nan)
    logits[1, 2], logits[1, 3] = torch.inf, 0.5
    assert sample(logits, _table([SamplingParams()] * 2), torch.zeros(2).long()).ids.tolist() == [-1, 3]


def test_the_sampling_mode_is_minimal():
    assert SamplingMode.of([SamplingParams(temperature=0, top_p=0.5)]) == SamplingMode()
    assert SamplingMode.of([SamplingParams(), SamplingParams(top_k=5)]) == SamplingMode(
        filters=True, noise=True
    )
    assert SamplingMode.of([SamplingParams(temperature=0, repeat_penalty=1.1, logprobs=2)]) == SamplingMode(
        penalties=True, logprobs=2
    )
