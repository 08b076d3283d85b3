"""Folders that are no models, and models whose backend is not installed: what is said about them."""

from __future__ import annotations

import sys

import pytest

from stretto.errors import ModelNotFoundError, TorchMissingError
from stretto.worker.loading import load
from stretto.worker.model_paths import find


def test_a_folder_without_a_config_is_no_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"no config\.json") as caught:
        find(str(tmp_path), tmp_path)
    assert caught.value.hint == "check the path"
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelNotFoundError) as caught:
        find(str(tmp_path), tmp_path)
    assert str(tmp_path / "a.gguf") in caught.value.hint


def test_a_safetensors_model_without_torch(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "stretto.backends.torch.loading", None)  # the import fails
    with pytest.raises(TorchMissingError, match=tmp_path.name) as caught:
        load(tmp_path, {}, cache_dir=tmp_path)
    assert "stretto[torch]" in caught.value.hint
