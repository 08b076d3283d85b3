"""Everything is compiled and captured before a model is ready; nothing afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch import loading, runner
from stretto.backends.torch.compile_count import CompileCount, remove_old_caches
from stretto.backends.torch.graphs import eager_rows
from stretto.backends.torch.inputs import send_columns
from stretto.backends.torch.modes import PREPARED, prepared_mode
from stretto.backends.torch.ragged import Ragged
from stretto.backends.torch.sampling_table import SamplingMode
from stretto.backends.torch.warm_up import load_kernels
from stretto.settings import load as load_settings
from stretto.worker.pool import ModelPool
from stretto.worker.telemetry import model_stats
from stretto.worker.torch_loading import load_torch
from tests.unit.backends.torch.rig import Loop, ask, folder, make_backend
from tests.unit.backends.torch.test_logits import Repeated

EVERY_MODE = [
    SamplingMode(*switches, logprobs=logprobs)
    for switches in itertools.product((False, True), repeat=5)
    for logprobs in (-1, 0, 20)
]


def mixed_requests():
    kinds = [
        {},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_p": 0.9},
        {"repeat_penalty": 1.3},
        {"logprobs": 3, "temperature": 0.7},
        {"logit_bias": {7: -100.0}},
    ]
    return [
        ask(f"r{at}", 3 + 20 * at, start=at, outputs=4 + at, **more | {"seed": at})
        for at, more in enumerate(kinds)
    ]


class Failing(Repeated):
    """Cannot capture the larger buckets."""

    def capture(self, key, run, prepare=None):
        if key[0] > 2:
            raise torch.OutOfMemoryError("no memory for this graph")
        super().capture(key, run)


@pytest.mark.parametrize("mode", EVERY_MODE, ids=str)
def test_every_mode_is_covered_by_a_prepared_one(mode):
    found = prepared_mode(mode)
    assert found in PREPARED
    assert found.covers(mode)
    assert prepared_mode(found) == found


def test_after_the_warm_up_nothing_is_captured_and_texts_are_the_same():
    warm = make_backend("qwen3", slots=4, graphs=Repeated())
    seen = []
    warm.warm_up(seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    decode = len(warm.runner.buckets) * (1 + len(PREPARED))  # layers, then each mode
    assert warm.runner.mixed.buckets
    assert warm.runner.captures == decode + len(warm.runner.mixed.buckets)
    texts = Loop(warm).run(mixed_requests())
    assert warm.late_work == (0, 0)
    assert texts == Loop(make_backend("qwen3", slots=4)).run(mixed_requests())


def test_without_a_warm_up_captures_are_counted_as_late():
    backend = make_backend("qwen3", slots=4, graphs=Repeated())
    Loop(backend).run(mixed_requests())
    assert backend.late_work.captures > 0


def test_a_pass_whose_graph_could_not_be_captured_runs_without_one():
    backend = make_backend("qwen3", slots=4, graphs=Failing())
    backend.warm_up()
    texts = Loop(backend).run(mixed_requests())
    assert backend.late_work == (0, 0)
    assert texts == Loop(make_backend("qwen3", slots=4)).run(mixed_requests())


class Loader:
    """A torch model on the CPU with graphs that are only recorded."""

    def __init__(self, graphs):
        self.graphs = graphs

    def ids(self):
        return ["tiny"]

    def resolve(self, model_id):
        return model_id

    def estimate_bytes(self, model_id, progress):
        return 1

    def load(self, model_id, progress):
        loaded = load_settings(None, flags={"load_format": "dummy", "n_seq_max": 2, "n_batch": 64})
        return load_torch(folder("qwen3"), loaded.settings.defaults, loaded, progress=progress)


def test_a_model_is_ready_only_when_everything_is_captured(monkeypatch):
    graphs = Repeated()

    def options(**given):
        return loading_options(**given | {"graphs": graphs, "device": "cpu", "window": 256, "rows_max": 64})

    loading_options = loading.TorchOptions
    monkeypatch.setattr(loading, "TorchOptions", options)
    stages, shares, captured = [], [], {}

    def on_progress(progress):
        stages.append(progress.stage)
        shares.append(progress.fraction)
        captured[progress.stage] = len(graphs.runs)

    async def run():
        pool = ModelPool(Loader(graphs), budget_bytes=10, on_progress=on_progress)
        entry = await pool.acquire("tiny")
        stats = await model_stats("tiny", entry.resident.runtime, busy=False)
        pool.release(entry)
        await pool.close()
        return stats

    stats = asyncio.run(run())
    assert list(dict.fromkeys(stages)) == ["loading", "compiling", "ready"]
    assert shares == sorted(shares)
    assert captured["ready"] == 2 * (1 + len(PREPARED)) + 1  # layers, then each mode; a mixed pass
    assert (stats.late_compiles, stats.late_captures) == (0, 0)


class FakeRuntime:
    def __init__(self, hook=None):
        self.jit_post_compile_hook = hook


def test_compilations_count_unless_a_model_is_being_loaded():
    others = []
    runtime, count = FakeRuntime(lambda **found: others.append(found)), CompileCount()
    count.watch(runtime)
    count.watch(runtime)
    runtime.jit_post_compile_hook(key="a")
    with count.preparing():
        runtime.jit_post_compile_hook(key="b")
    assert count.late == 1
    assert [found["key"] for found in others] == ["a", "b"]


def test_old_kernel_caches_are_removed(tmp_path):
    for age in range(6):
        (tmp_path / f"cache-{age}").mkdir()
        os.utime(tmp_path / f"cache-{age}", (1000 - age, 1000 - age))
    remove_old_caches(tmp_path, 4)
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"cache-{age}" for age in range(4)]


def test_kernels_are_loaded_for_row_counts_beyond_the_graphs():
    assert eager_rows(1536, 1750) == (1600, 1664, 1728, 1750)
    assert eager_rows(8128, 8700) == (8192, 8448, 8700)
    assert eager_rows(4096, 2048) == ()


def test_loading_kernels_computes_a_layer_and_changes_nothing(monkeypatch):
    backend = make_backend("qwen3", slots=8)
    seen = counted_layers(backend, monkeypatch)
    with torch.inference_mode():
        load_kernels(backend.runner, [3, 40], span=16)
    assert seen == [3, 40]
    texts = Loop(backend).run(mixed_requests())
    assert texts == Loop(make_backend("qwen3", slots=8)).run(mixed_requests())


@pytest.mark.parametrize(("kind", "layers"), [("qwen3", 2), ("gemma3", 3)])
def test_a_few_layers_warm_a_model_whose_layers_are_alike(kind, layers, monkeypatch):
    backend = make_backend(kind, slots=2)
    seen = counted_layers(backend, monkeypatch)
    with torch.inference_mode():
        backend.runner.ragged(prompt_of(backend, 8), PREPARED[0], layers=backend.model.alike)
    assert len(seen) == layers


def counted_layers(backend, monkeypatch):
    """The rows of each layer that is computed from now on. Models are shared."""
    seen = []

    def counted(layer):
        return lambda x, *rest: (seen.append(len(x)), layer(x, *rest))[1]

    monkeypatch.setattr(backend.model, "_layers", [counted(layer) for layer in backend.model._layers])
    return seen


def prompt_of(backend, rows):
    tokens = np.zeros(rows, dtype=np.int32)
    slot, start, count = (np.array([n], dtype=np.int32) for n in (backend.runner.padding_slot, 0, rows))
    return Ragged(slot, start, count, np.ones(1, dtype=np.int32), tokens)


def test_a_capture_sends_columns_as_a_tick_does(monkeypatch):
    """Or the kernel for it would be compiled in the first tick."""
    sent = []

    def seen(target, columns, *rest):
        sent.append(len(target))
        return send_columns(target, columns, *rest)

    backend = make_backend("qwen3", slots=2, graphs=Repeated())
    monkeypatch.setattr(runner, "send_columns", seen)
    backend.warm_up()
    assert {3, 6} <= set(sent)
