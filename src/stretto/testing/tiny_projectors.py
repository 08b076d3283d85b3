"""Writes a tiny random projector (mmproj) for the tiny gemma3 of `tiny_models`: a picture becomes four rows.

A SigLIP-like tower of two blocks in the form that llama.cpp's libmtmd reads. libmtmd names no tensors for a
header without weights, so the list is here. Random weights give rows that depend on every pixel, which is
enough for invariants: alone and batched, cached and cold, chunked and whole.
"""

from __future__ import annotations

from pathlib import Path

from stretto.testing import tiny_models
from stretto.testing.tiny_models import Shapes, Value, file_parts, key_value

IMAGE, PATCH, MERGE = 56, 14, 2
ROWS = (IMAGE // PATCH // MERGE) ** 2
_EMBD, _FF, _BLOCKS, _HEADS = 32, 64, 2, 2
TEXT_EMBD = 64  # of the tiny models


def make(directory: Path | None = None, seed: int = 0, width: int = TEXT_EMBD) -> Path:
    """The path of a projector for `tiny_models.make("swa")`; `width`: for a model of another one."""
    folder = directory if directory is not None else tiny_models.default_directory(seed)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"mmproj-tiny-swa-v{tiny_models.MAKER_VERSION}-s{seed}-w{width}.gguf"
    if not path.exists():
        with tiny_models.part_file(path) as part, part.open("wb") as file:
            file.writelines(file_parts(_keys(width), _shapes(width), seed))
    return path


def _keys(width: int) -> list[bytes]:
    keys: dict[str, Value] = {
        "general.architecture": "clip",
        "general.name": "tiny projector",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": IMAGE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": _EMBD,
        "clip.vision.feed_forward_length": _FF,
        "clip.vision.block_count": _BLOCKS,
        "clip.vision.projection_dim": width,
        "clip.vision.attention.head_count": _HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projector.scale_factor": MERGE,
        "clip.vision.image_mean": (0.5, 0.5, 0.5),
        "clip.vision.image_std": (0.5, 0.5, 0.5),
    }
    return [key_value(name, value) for name, value in keys.items()]


def _shapes(width: int) -> Shapes:
    """39 tensors, the slowest dimension first."""
    shapes: Shapes = {
        "v.patch_embd.weight": (_EMBD, 3, PATCH, PATCH),
        "v.patch_embd.bias": (_EMBD,),
        "v.position_embd.weight": ((IMAGE // PATCH) ** 2, _EMBD),
        "v.post_ln.weight": (_EMBD,),
        "v.post_ln.bias": (_EMBD,),
        "mm.input_projection.weight": (_EMBD, width),
        "mm.soft_emb_norm.weight": (_EMBD,),
    }
    for block in range(_BLOCKS):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (_EMBD, _EMBD))
        for name, shape in {**square, "ffn_up": (_FF, _EMBD), "ffn_down": (_EMBD, _FF)}.items():
            shapes[f"v.blk.{block}.{name}.weight"] = shape
            shapes[f"v.blk.{block}.{name}.bias"] = shape[:1]
        for name in ("ln1", "ln2"):
            shapes[f"v.blk.{block}.{name}.weight"] = (_EMBD,)
            shapes[f"v.blk.{block}.{name}.bias"] = (_EMBD,)
    return shapes
