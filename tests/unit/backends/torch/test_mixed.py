"""Mixed passes through graphs: padded rows and spans change nothing, and what has no graph runs eagerly."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stretto.backends.torch import graphs
from tests.unit.backends.torch.rig import Loop, ask, make_backend
from tests.unit.backends.torch.test_logits import Repeated


class Counted(Repeated):
    def __init__(self):
        super().__init__()
        self.replayed = []

    def replay(self, key):
        self.replayed.append(key)
        return super().replay(key)


def warm(kind, **more):
    recorded = Counted()
    backend = make_backend(kind, slots=4, graphs=recorded, **more)
    backend.warm_up()
    recorded.replayed.clear()
    return backend, recorded


def requests():
    """More than slots, prompts of several chunks: most passes have prompts beside streams."""
    return [ask(f"r{at}", 7 + 23 * at, start=at, outputs=5 + at, temperature=0.7, seed=at) for at in range(7)]


@pytest.mark.parametrize("kind", ["qwen3", "moe"])
def test_texts_are_those_of_eager_passes(kind):
    backend, recorded = warm(kind)
    texts = Loop(backend, prefill_chunk=24).run(requests())
    assert texts == Loop(make_backend(kind, slots=4), prefill_chunk=24).run(requests())
    assert {key.rows for key in recorded.replayed if key.mixed} == {64}
    assert any(
        before.mixed and after.mode is not None and not after.mixed
        for before, after in pairwise(recorded.replayed)
    ), "head and sampler of a mixed pass are those of a decode pass"
    assert backend.late_work == (0, 0)


def test_prompt_scores_and_large_batches_run_eagerly():
    backend, recorded = warm("qwen3")
    plain = make_backend("qwen3", slots=4)
    scored = [ask("s", 60, outputs=3, prompt_logprobs=2), ask("t", 40, start=3, outputs=3, prompt_logprobs=1)]
    assert Loop(backend).run(scored) == Loop(plain).run(scored)
    assert not any(key.mixed for key in recorded.replayed)
    backend.runner.mixed.buckets = (64,)
    long = [ask("l", 200, outputs=3)]
    assert Loop(backend, prefill_chunk=128).run(long) == Loop(plain, prefill_chunk=128).run(long)
    assert not any(key.mixed and key.rows > 64 for key in recorded.replayed)


def test_buckets_end_where_computing_takes_longer_than_launching(monkeypatch):
    shape = make_backend("qwen3").model.shape
    assert graphs.mixed_buckets(shape, 700) == (64, 128, 192, 256, 384, 512)
    assert graphs.mixed_buckets(shape, 8192)[-9:] == (4096, *range(4608, 8193, 512))
    monkeypatch.setattr(graphs, "LAYER_FLOP_MAX", 2.0 * graphs.layer_weights(shape) * 300)
    assert graphs.mixed_buckets(shape, 8192) == (64, 128, 192, 256)


class CountedRows:
    """Rows that a layer or a part of one computes."""

    def __init__(self, inner):
        self.inner, self.rows = inner, []

    def __call__(self, x, *more):
        self.rows.append(len(x))
        return self.inner(x, *more)


def test_large_passes_are_padded_to_row_counts_whose_kernels_are_loaded(monkeypatch):
    long = [ask(f"l{at}", 130 + at, start=at, outputs=3) for at in range(3)]
    plain = Loop(make_backend("qwen3", slots=4), prefill_chunk=150).run(long)
    backend, _ = warm("qwen3")
    monkeypatch.setattr(backend.runner.mixed, "buckets", (64,))
    monkeypatch.setattr(backend.runner, "_graph_rows_max", 64)
    monkeypatch.setattr(backend.runner, "eager_rows", (96, 160))
    first = CountedRows(backend.model._layers[0])
    monkeypatch.setattr(backend.model, "_layers", [first, *backend.model._layers[1:]])  # models are shared
    assert Loop(backend, prefill_chunk=150).run(long) == plain
    large = {rows for rows in first.rows if rows > 64}
    assert large
    assert large <= {96, 160}


@pytest.mark.parametrize("kind", ["qwen3", "moe"])
def test_the_last_layer_computes_only_rows_that_are_read(kind, monkeypatch):
    both = [ask("a", 100, outputs=3), ask("b", 90, start=2, outputs=4)]
    backend = make_backend(kind, slots=4)
    texts = Loop(backend, prefill_chunk=100).run(both)
    last = backend.model._layers[-1]
    mixer = CountedRows(last._mixer)
    monkeypatch.setattr(last, "_mixer", mixer)
    assert Loop(make_backend(kind, slots=4), prefill_chunk=40).run(both) == texts
    assert mixer.rows
    assert max(mixer.rows) <= 2
