"""Where a model runs unless the caller says it: in a worker process with torch on a GPU."""

from __future__ import annotations

import pytest

from stretto import settings
from stretto.llm.placement import runs_in_child


def decided(name: str, *, gpu: bool, asked: bool | None = None, **flags) -> bool:
    found = settings.load(None, env={}, flags=flags).settings
    return runs_in_child(found, name, asked=asked, has_gpu=gpu)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, True),
        ({"backend": "torch"}, True),
        ({"devices": ["cuda:1"]}, True),
        ({"devices": ["cpu"]}, False),
        ({"n_gpu_layers": 0}, False),
        ({"backend": "simulated"}, False),
        ({"backend": "llamacpp"}, False),
        ({"runtime.own_process": False}, False),
    ],
)
def test_a_folder_on_a_machine_with_a_gpu(tmp_path, flags, expected):
    assert decided(str(tmp_path), gpu=True, **flags) is expected


def test_without_a_gpu_and_for_files_the_model_stays_here(tmp_path):
    assert not decided(str(tmp_path), gpu=False)
    assert decided(str(tmp_path), gpu=False, devices=["cuda:0"])
    assert not decided(str(tmp_path / "model.gguf"), gpu=True)
    assert decided(str(tmp_path / "model.gguf"), gpu=True, backend="torch")
    assert not decided("", gpu=True)


def test_the_keyword_wins(tmp_path):
    assert not decided(str(tmp_path), gpu=True, asked=False)
    assert decided("", gpu=False, asked=True)
    assert not decided("", gpu=False, asked=False, **{"runtime.own_process": True})
