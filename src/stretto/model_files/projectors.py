"""Projector files (mmproj): where they are, and whether their header is sound. Reads headers only."""

from __future__ import annotations

import re
from pathlib import Path

from stretto.errors import ModelError, UnsupportedModelError
from stretto.model_files import gguf

PATTERN = "mmproj*.gguf"
FILES_MAX = 64  # looked at in a folder
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_TYPE = re.compile(r"[-._](i?q\d\w*|bf16|f16|f32|mxfp4\w*)$")


def read(path: Path) -> gguf.GgufFile:
    """The checked header of a projector; raises a ModelError."""
    file = gguf.read(path)
    if file.metadata.get("general.architecture") != "clip" or not _encodes(file):
        raise UnsupportedModelError(
            f"{path} is not a projector", hint="name the model's mmproj file, or set mmproj: none"
        )
    return file


def beside(model: gguf.GgufFile) -> Path | None:
    """The projector in the folder of a model: of the model's width, and with its name in the file's name.

    In a folder of one model, whatever its quantizations, the name does not matter.
    """
    folder, name = model.path.parent, _plain_name(model.path)
    width = model.metadata.get(f"{model.metadata.get('general.architecture')}.embedding_length")
    found = [path for path in sorted(folder.glob(PATTERN))[:FILES_MAX] if _width(path) == width]
    named = [path for path in found if name in path.stem.lower()]
    if found and not named:
        models = {_plain_name(path) for path in folder.glob("*.gguf") if not path.match(PATTERN)}
        named = found if models == {name} else []
    return named[0] if named else None


def bytes_for(model: gguf.GgufFile, mmproj: str) -> int:
    """Memory of the weights of the projector that a model would have by this setting."""
    if mmproj == "none":
        return 0
    path = beside(model) if mmproj == "auto" else Path(mmproj).expanduser()
    return read(path).weights_bytes if path is not None else 0


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


def _plain_name(path: Path) -> str:
    """Of a model, without its quantization and the number of a shard."""
    return _TYPE.sub("", _SHARD.sub("", path.name.lower().removesuffix(".gguf")))
