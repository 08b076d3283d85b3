"""The trial load: a child may crash, the caller does not, and the result is cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stretto.errors import ModelRefusedError, NotGgufError
from stretto.model_files import gguf, probe
from stretto.model_files.child import run_child
from stretto.model_files.kind import ModelKind, shape_of
from stretto.testing.tiny_models import KINDS, key_value

HEAPS = """
import ctypes, threading
from stretto.model_files.child import limit_self

def address_space_mib():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmSize")).split()[1]) >> 10

limit_self(memory_bytes=8 << 30, cpu_s=60)
threading.stack_size(256 << 10)
before, met, go = address_space_mib(), threading.Barrier(33), threading.Event()

def work():
    ctypes.CDLL(None).malloc(1000)
    met.wait()
    go.wait()

for _ in range(32):
    threading.Thread(target=work, daemon=True).start()
met.wait()
print(address_space_mib() - before)
go.set()
"""


def broken_copy(source, target, old, new):
    """A file with a valid header and content that llama.cpp cannot use."""
    data = source.read_bytes()
    assert old in data
    target.write_bytes(data.replace(old, new, 1))
    return target


@pytest.fixture
def refused_file(tiny, tmp_path):
    old, new = key_value("bert.embedding_length", 64), key_value("bert.embedding_length", 96)
    return broken_copy(tiny("embedding"), tmp_path / "refused.gguf", old, new)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tiny_model_loads_and_llama_agrees_on_its_kind(tiny, kind):
    path = tiny(kind)
    shape = shape_of(gguf.read(path))
    verdict = probe.require(path, cache_dir=None)
    assert verdict.decoded
    assert verdict.hybrid is (shape.kind is ModelKind.HYBRID)
    assert verdict.recurrent is (shape.kind is ModelKind.RECURRENT)
    assert verdict.window == shape.sliding_window
    assert verdict.vocabulary_size == shape.vocabulary_size


def test_without_reading_weights(tiny):
    verdict = probe.require(tiny("dense"), cache_dir=None, decode=False)
    assert verdict.loads
    assert not verdict.decoded


def test_a_result_is_cached_until_the_file_changes(tiny, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny("embedding").read_bytes())
    cache = tmp_path / "cache"
    assert not probe.probe(path, cache_dir=cache).cached
    assert probe.probe(path, cache_dir=cache).cached
    os.utime(path, ns=(5, 5))
    assert not probe.probe(path, cache_dir=cache).cached


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"x": 1}', '{"x": {}}'])
def test_a_damaged_cache_is_treated_as_empty(tiny, tmp_path, damage):
    (tmp_path / probe.CACHE_FILE).write_text(damage)
    assert probe.probe(tiny("embedding"), cache_dir=tmp_path).loads
    assert len(json.loads((tmp_path / probe.CACHE_FILE).read_text())) == 1


def test_a_model_llama_refuses(refused_file, tmp_path):
    verdict = probe.probe(refused_file, cache_dir=tmp_path)
    assert not verdict.loads
    assert verdict.stage == "model"
    assert verdict.reason
    assert "\n" not in verdict.reason
    with pytest.raises(ModelRefusedError) as caught:
        probe.require(refused_file, cache_dir=tmp_path)
    assert caught.value.hint


def test_a_crash_of_the_child_is_reported_as_a_result(tiny, tmp_path):
    """More experts than llama.cpp supports: it aborts the process."""
    old, new = key_value("qwen3moe.expert_count", 4), key_value("qwen3moe.expert_count", 100_000)
    path = broken_copy(tiny("moe"), tmp_path / "abort.gguf", old, new)
    verdict = probe.probe(path, cache_dir=None)
    assert not verdict.loads
    assert verdict.reason == "it crashed (SIGABRT)"


def test_a_child_that_times_out_is_killed_and_not_cached(tiny, tmp_path):
    verdict = probe.probe(tiny("dense"), cache_dir=tmp_path, timeout_s=0.01)
    assert (verdict.loads, verdict.reason) == (False, "it took too long")
    assert probe.probe(tiny("dense"), cache_dir=tmp_path).loads


def test_an_invalid_header_raises_without_starting_a_child(tmp_path):
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    with pytest.raises(NotGgufError):
        probe.probe(text, cache_dir=None)


def test_the_caller_never_imports_llama():
    modules = "stretto.model_files.probe, stretto.model_files.store"
    code = f"import sys; import {modules}; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_of_a_child_share_a_heap():
    """Its address space is limited, and each heap takes 64 MiB of it."""
    run = subprocess.run([sys.executable, "-c", HEAPS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 64


def test_a_missing_module_is_a_reason_not_an_exception():
    end = run_child("stretto.model_files.no_such", [], timeout_s=30, on_line=lambda _: None)
    assert end.code == 1
    assert "no_such" in end.reason
