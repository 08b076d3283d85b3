"""Logits equal transformers' for all page sizes, chunks, batches, shared prefixes and preemptions."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch.graphs import buckets_up_to
from tests.unit.backends.torch.rig import KINDS, TOLERANCE, Loop, ask, make_backend, reference_logits, tiny


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_tokens", [1, 5, 16, 64])
def test_ragged_mixed_batches(kind, page_tokens):
    """Seven requests for four slots: decode rows, chunks and new prompts in the same passes."""
    backend = make_backend(kind, page_tokens=page_tokens, pages=4 * -(-256 // page_tokens))
    loop = Loop(backend, prefill_chunk=24)
    texts = loop.run(ask(f"r{i}", 5 + 13 * i, start=i, outputs=4 + 3 * (i % 3)) for i in range(7))
    assert [len(text) for text in texts.values()] == [4 + 3 * (i % 3) for i in range(7)]
    assert loop.worst(kind) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 5, 19, 38, 39])
def test_every_chunk_size(kind, chunk):
    """39 tokens, so that (39 - 1) is a multiple of 1, 19 and 38."""
    from tests.contract.driver import Driver, Row

    backend, request = make_backend(kind, page_tokens=8), ask("chunked", 39)
    driver = Driver(backend)
    driver.bind(0, request)
    tokens = list(request.tokens)
    for start in range(0, 39, chunk):
        part = tokens[start : start + chunk]
        driver.run(Row(0, 0, start, part, int(start + len(part) == 39)))
    row = tiny(kind).rows[-1][0]
    tiny(kind).rows.clear()
    assert float((row - reference_logits(kind, tokens)[-1]).abs().max()) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan_ahead", [0, 1])
def test_shared_prefixes(kind, plan_ahead):
    """Full pages are shared, part of the next one is copied, and the logits do not change."""
    backend = make_backend(kind, plan_ahead=plan_ahead)
    loop = Loop(backend, prefill_chunk=32)
    first = ask("first", 70, outputs=12)
    loop.run([first])
    others = []
    for number, kept in enumerate((70, 64, 57, 33, 70)):
        tail = ask("tail", 3 + number, start=30 + number).tokens
        others.append(type(first)(f"o{number}", first.tokens[:kept] + tail, first.params))
    loop.run(others)
    assert sum(end.cached_tokens > 0 for end in loop.ends.values()) >= 4
    assert loop.worst(kind) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_preemption_and_resume(kind):
    """Sixteen pages for four texts of up to six: a request is preempted, recomputed, and unchanged."""
    backend = make_backend(kind, pages=16, page_tokens=8)
    loop = Loop(backend, prefill_chunk=16, cache="none", headroom_tokens=1)
    requests = [ask(f"r{i}", 10 + i, start=i, outputs=34) for i in range(5)]
    texts = loop.run(requests)
    assert sum(end.preemptions for end in loop.ends.values()) > 0
    assert all(len(text) == 34 for text in texts.values())
    assert loop.worst(kind) < TOLERANCE


def test_planning_ahead_changes_no_text():
    requests = [ask(f"r{i}", 9 + 5 * i, start=i, outputs=10) for i in range(5)]
    texts = []
    for plan_ahead in (0, 1):
        loop = Loop(make_backend("qwen3", plan_ahead=plan_ahead), prefill_chunk=16)
        texts.append(loop.run(requests))
    assert texts[0] == texts[1]


class Repeated:
    """Replaces CUDA graphs: runs what was captured again, with inputs and results in static memory."""

    def __init__(self):
        self.runs = {}

    def __contains__(self, key):
        return key in self.runs

    def capture(self, key, run, prepare=None):
        if prepare is not None:
            prepare()
        self.runs[key] = run, run()

    def replay(self, key):
        run, result = self.runs[key]
        if key.mode is not None:
            return run()  # on a CPU nobody copies it before the next pass
        for kept, new in zip(tensors(result), tensors(run()), strict=True):
            kept.copy_(new)
        return result

    def result(self, key):
        return self.runs[key][1]


def tensors(result):
    """All tensors of a result, which may be nested."""
    if isinstance(result, torch.Tensor):
        return [result]
    if dataclasses.is_dataclass(result):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
    return [found for one in result if one is not None for found in tensors(one)]


@pytest.mark.parametrize("kind", ["qwen3", "moe"])
def test_decode_batches_padded_to_buckets_equal_the_reference(kind):
    """Padding rows write nothing, read nothing and do not affect the sampling of other rows."""
    graphs = Repeated()
    backend = make_backend(kind, graphs=graphs, slots=8, pages=80, page_tokens=8)
    loop = Loop(backend, prefill_chunk=32)
    requests = [ask(f"r{i}", 4 + 11 * i, start=i, outputs=5 + 2 * i) for i in range(7)]
    requests += [ask("p", 9, start=9, outputs=20, repeat_penalty=1.3, temperature=0.8, seed=4)]
    texts = loop.run(requests)
    assert {bucket for bucket, *_ in graphs.runs} >= {1, 4, 6}
    assert loop.worst(kind) < TOLERANCE
    plain = Loop(make_backend(kind, slots=8, pages=80, page_tokens=8), prefill_chunk=32)
    assert plain.run(requests) == texts


def test_buckets():
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(5) == (1, 2, 4, 5)
    assert buckets_up_to(256)[-3:] == (192, 224, 256)
    assert len(buckets_up_to(512)) < 30
