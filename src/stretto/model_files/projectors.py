"""Projector files (mmproj): where they are, and whether their header is sound. Reads headers only."""

from __future__ import annotations

from pathlib import Path

from stretto.errors import ModelError, UnsupportedModelError
from stretto.model_files import gguf

PATTERN = "mmproj*.gguf"
FILES_MAX = 64  # looked at in a folder


def read(path: Path) -> gguf.GgufFile:
    """The checked header of a projector; raises a ModelError."""
    file = gguf.read(path)
    if file.metadata.get("general.architecture") != "clip" or not _encodes(file):
        raise UnsupportedModelError(
            f"{path} is not a projector", hint="name the model's mmproj file, or set mmproj: none"
        )
    return file


def beside(model: gguf.GgufFile) -> Path | None:
    """The projector in the folder of a model that makes rows of the model's width; the best name wins."""
    width = model.metadata.get(f"{model.metadata.get('general.architecture')}.embedding_length")
    found = [path for path in sorted(model.path.parent.glob(PATTERN))[:FILES_MAX] if _width(path) == width]
    return max(found, key=lambda path: _common(path.stem, model.path.stem), default=None)


def is_projector(path: Path) -> bool:
    return path.match(PATTERN)


def size_bytes(path: Path) -> int:
    """Memory of its weights."""
    return sum(tensor.size for tensor in read(path).tensors.values())


def _encodes(file: gguf.GgufFile) -> bool:
    return any(file.metadata.get(f"clip.has_{kind}_encoder") is True for kind in ("vision", "audio"))


def _width(path: Path) -> object:
    """Of its rows; None: not known, or no projector."""
    try:
        metadata = read(path).metadata
    except (ModelError, OSError):
        return None
    widths = (metadata.get(f"clip.{kind}.projection_dim") for kind in ("vision", "audio"))
    return next((width for width in widths if width is not None), None)


def _common(name: str, model: str) -> int:
    """Letters of the model's name that the projector's ends with, or has within it."""
    name = name.lower().removeprefix("mmproj").lstrip("-_.")
    same = [a == b for a, b in zip(name, model.lower(), strict=False)]
    return same.index(False) if False in same else len(same)
