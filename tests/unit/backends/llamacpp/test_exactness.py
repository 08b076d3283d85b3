"""Rows that verify drafts have the logits of single rows, or no drafts are verified: with a real model."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.llamacpp import Context, ContextOptions, LlamaCppBackend, Model, load
from stretto.backends.llamacpp.calibration import rows_for
from stretto.model_files import bundled
from stretto.testing.tiny_models import default_directory
from tests.unit.backends.llamacpp.kernels.rig import child, on_x86
from tests.unit.backends.llamacpp.rig import make_backend

DRAFTS = 8


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = load(bundled.ensure_default(default_directory()), cache_dir=default_directory())
    yield loaded
    loaded.close()


def opened(model, **more) -> LlamaCppBackend:
    sizes = {"n_seq_max": 2, "context_window": 512, "n_threads": 2, "drafts_max": DRAFTS}
    return LlamaCppBackend(Context(model, ContextOptions(**sizes | more)))


def logits(context: Context, *spans: tuple[int, int, int]) -> np.ndarray:
    rows = rows_for(list(spans), vocab=context.vocab)
    assert context.decode(replace(rows, outputs=array("b", [1] * len(rows)), outputs_count=len(rows))) == 0
    return context.logits().copy()


def verified_and_single(context: Context, length: int) -> tuple[np.ndarray, np.ndarray]:
    context.remove(0, 0)
    assert context.decode(rows_for([(0, 0, length)], vocab=context.vocab)) == 0
    single = np.concatenate([logits(context, (0, length + at, 1)) for at in range(1 + DRAFTS)])
    context.remove(0, length)
    return logits(context, (0, length, 1 + DRAFTS)), single


@pytest.mark.parametrize("length", [40, 60, 128, 200])
def test_by_default_verified_rows_have_the_bits_of_single_rows(model, request, length):
    backend = opened(model)
    request.addfinalizer(backend.close)
    assert backend.no_drafts == ""
    assert backend.drafting.drafts_max == DRAFTS
    verified, single = verified_and_single(backend.context, length)
    assert verified.tobytes() == single.tobytes()


def test_without_flash_attention_they_differ_and_nothing_is_verified(model, request):
    backend = opened(model, flash_attention="long")
    request.addfinalizer(backend.close)
    assert "without flash attention" in backend.no_drafts
    assert backend.drafting.drafts_max == 0
    verified, single = verified_and_single(backend.context, 60)
    assert np.abs(verified - single).max() > 0.05


def test_a_lone_row_whose_context_llama_cpp_splits(model, request):
    """A single slot has no padding row; measured at load. With our own kernel nothing is split."""
    backend = opened(model, n_seq_max=1, flash_attention="rows")
    request.addfinalizer(backend.close)
    assert bool(backend.no_drafts) is not backend.measures.lone_row_invariant


def test_without_speculation_nothing_is_measured(model, request):
    backend = opened(model, flash_attention="long", drafts_max=0)
    request.addfinalizer(backend.close)
    assert backend.no_drafts == ""


def test_a_state_that_cannot_be_taken_back():
    backend = make_backend("recurrent", drafts_max=2)
    assert "cannot be taken back" in backend.no_drafts
    assert backend.drafting.drafts_max == 0


@on_x86
def test_with_our_kernels_at_every_length_and_in_chunks_of_any_size(tmp_path):
    """A lone row at a long context, and passes of more rows than llama.cpp computes row by row."""
    script = """
from tests.unit.backends.llamacpp.test_exactness import opened, verified_and_single, logits, rows_for
from stretto.backends.llamacpp import load
from stretto.model_files.bundled import ensure_default
model = load(ensure_default(cache), cache_dir=cache, trial=False)
backend = opened(model, n_seq_max=1, context_window=2048)
context = backend.context
print(repr(backend.no_drafts), context.plan.row_attention, context.n_ubatch, backend.quirks.pad_lone_row)
for length in (40, 255, 600, 1100):
    verified, single = verified_and_single(context, length)
    print(verified.tobytes() == single.tobytes())
found = set()
for chunk in (200, 150, 64, 31, 1):
    context.remove(0, 0)
    for at in range(0, 200, chunk):
        last = logits(context, (0, at, 1)) if chunk == 1 else None
        if chunk > 1:
            context.decode(rows_for([(0, at, min(chunk, 200 - at))], vocab=context.vocab))
    found.add(context.logits()[-1].tobytes())
print(len(found))
"""
    assert child(script, tmp_path) == ["'' True 512 False", *["True"] * 4, "1"]
