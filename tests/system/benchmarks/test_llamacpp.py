"""The benchmark of the llama.cpp backend runs, with a tiny model: figures of both loops for the same rows."""

from __future__ import annotations

from benchmarks import llamacpp
from stretto.backends.llamacpp import load
from stretto.testing import tiny_models


def test_both_loops_decode_the_same_rows():
    model = load(tiny_models.make("dense"), cache_dir=None)
    found = llamacpp.measure_slots(model, 2, threads=1, blocks=2)
    model.close()
    assert set(found) == {"ratio", "tokens_per_s", "bare_tokens_per_s", "over_us"}
    assert found["ratio"]["median"] > 0
    assert found["tokens_per_s"] > 0
