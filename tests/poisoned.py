"""A sound model file in which one token leads to NaN logits, and every other token to ordinary ones.

All weights are finite, so no check of the file finds it: only that token's embedding has something in the
first place, and the first layer's values make of it more than half precision holds.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from stretto.model_files import gguf
from stretto.testing import tiny_models

TOKEN = 4242


def make(directory: Path, kind: str = "dense") -> Path:
    """Of a kind whose first layer has attention."""
    path = directory / "nan.gguf"
    shutil.copy(tiny_models.make(kind), path)
    path.chmod(0o600)
    file = gguf.read(path)
    embedding, values = file.tensors["token_embd.weight"], file.tensors["blk.0.attn_v.weight"]
    _set_first(path, file.data_start, embedding, rows=None, value=0.0)
    _set_first(path, file.data_start, embedding, rows=TOKEN, value=1.0)
    _set_first(path, file.data_start, values, rows=None, value=1e9)
    return path


def _set_first(path: Path, data_start: int, tensor: gguf.Tensor, *, rows: int | None, value: float) -> None:
    width, height = tensor.dims[0], tensor.dims[1]
    weights = np.memmap(
        path, dtype=np.float32, mode="r+", offset=data_start + tensor.offset, shape=(height, width)
    )
    weights[slice(None) if rows is None else rows, 0] = value
    weights.flush()
