"""Threads that OpenMP keeps: none for what loads a model, none for a backend that rests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("llama_cpp")

from stretto.backends.llamacpp.native import openmp_team
from stretto.model_files.store import Store
from stretto.settings.places import cache_home
from tests.contract.driver import Driver, Row, ask, clear
from tests.unit.backends.llamacpp.rig import make_backend

LOADED = """
import os, sys
import numpy
from stretto.backends.llamacpp import ModelOptions, load
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
model = load(sys.argv[1], ModelOptions(n_gpu_layers=0), cache_dir=None, trial=False)
print(threads() - before)
"""


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc")
def test_loading_leaves_no_thread_behind():
    """Where the processor has AMX, Q4_0 weights are packed by OpenMP's threads."""
    model = str(Store(cache_home()).ensure_default())
    command = [sys.executable, "-c", LOADED, model]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


@pytest.mark.skipif(openmp_team._pause() is None, reason="llama.cpp computes without libgomp here")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor")
def test_a_backend_that_rests_gives_up_its_team_and_computes_again():
    backend = make_backend("dense", n_threads=2)
    driver, request = Driver(backend), ask("a", 40)
    driver.run(ops=[clear(0)])
    driver.bind(0, request)

    def compute(start: int, outputs: int) -> list[int]:
        outcome = driver.run(Row(0, 0, start, request.tokens[start : start + 20], outputs))
        return list(outcome.tokens)

    with ThreadPoolExecutor(1) as loop:
        loop.submit(compute, 0, 0).result()
        busy = threads()
        loop.submit(backend.rest).result()
        until_s = time.monotonic() + 5
        while threads() >= busy and time.monotonic() < until_s:
            time.sleep(0.01)
        assert threads() == busy - 1
        assert loop.submit(compute, 20, 1).result()
        assert threads() == busy
    backend.close()
