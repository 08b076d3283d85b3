"""Writes a tiny random projector (mmproj) for a tiny model of `tiny_models`.

A SigLIP-like tower of two blocks in the form that llama.cpp's libmtmd reads, for the gemma3: a picture
becomes four rows. Or one like that of Qwen2-VL, for the models with M-RoPE: a picture becomes a grid with a
row for every 8 x 8 pixels. On request a Whisper-like one beside it, which makes 30 rows of every 30 s of
sound. libmtmd names no tensors for a header without weights, so the list is here. Random weights give rows
that depend on every pixel and sample, which is enough for invariants: alone and batched, cached and cold,
chunked and whole.
"""

from __future__ import annotations

from pathlib import Path

from stretto.testing import tiny_models
from stretto.testing.tiny_models import Shapes, Value, file_parts, key_value

IMAGE, PATCH, MERGE = 56, 14, 2
ROWS = (IMAGE // PATCH // MERGE) ** 2
FRAMES, STACK, MELS = 1500, 50, 80  # of 30 s, after the tower's convolutions; how many become a row
SOUND_ROWS = FRAMES // STACK
GRID_PATCH = 4
GRID_PIXELS = GRID_PATCH * MERGE  # of a picture with M-RoPE, in either direction, that become a row
_EMBD, _FF, _BLOCKS, _HEADS = 32, 64, 2, 2
TEXT_EMBD = 64  # of the tiny models
_CONVOLUTIONS = ("a.conv1d.1.weight", "a.conv1d.2.weight")  # libmtmd takes them in 16 bits only


def make(
    directory: Path | None = None,
    seed: int = 0,
    width: int = TEXT_EMBD,
    *,
    hears: bool = False,
    grid: bool = False,
) -> Path:
    """The path of a projector for `tiny_models.make("swa")`; `width`: for a model of another one.

    `grid`: for `tiny_models.make("mrope")`.
    """
    folder = directory if directory is not None else tiny_models.default_directory(seed)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kind = "mrope" if grid else "swa"
    name = f"mmproj-tiny-{kind}-v{tiny_models.MAKER_VERSION}-s{seed}-w{width}{'_hears' if hears else ''}"
    path = folder / f"{name}.gguf"
    if not path.exists():
        keys = _grid_keys(width) if grid else _keys(width)
        shapes = _grid_shapes(width) if grid else _shapes(width)
        if hears:
            keys = {**_both_types(keys), **_sound_keys(width)}
            shapes |= _sound_shapes(width)
        with tiny_models.part_file(path) as part, part.open("wb") as file:
            written = [key_value(key, value) for key, value in keys.items()]
            file.writelines(file_parts(written, shapes, seed, halves=_CONVOLUTIONS))
    return path


def _keys(width: int) -> dict[str, Value]:
    return {
        "general.architecture": "clip",
        "general.name": "tiny projector",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": IMAGE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.projector.scale_factor": MERGE,
        "clip.vision.image_mean": (0.5, 0.5, 0.5),
        "clip.vision.image_std": (0.5, 0.5, 0.5),
        **_tower_keys("vision", width),
    }


def _grid_keys(width: int) -> dict[str, Value]:
    more: dict[str, Value] = {
        "clip.projector_type": "qwen2vl_merger",
        "clip.vision.patch_size": GRID_PATCH,
        "clip.vision.spatial_merge_size": MERGE,
    }
    return _keys(width) | more


def _both_types(keys: dict[str, Value]) -> dict[str, Value]:
    """Where there are two towers each names its type."""
    renamed = {"clip.projector_type": "clip.vision.projector_type"}
    return {renamed.get(key, key): value for key, value in keys.items()}


def _sound_keys(width: int) -> dict[str, Value]:
    return {
        "clip.has_audio_encoder": True,
        "clip.audio.projector_type": "ultravox",
        "clip.audio.num_mel_bins": MELS,
        "clip.audio.projector.stack_factor": STACK,
        **_tower_keys("audio", width),
    }


def _tower_keys(kind: str, width: int) -> dict[str, Value]:
    return {
        f"clip.{kind}.embedding_length": _EMBD,
        f"clip.{kind}.feed_forward_length": _FF,
        f"clip.{kind}.block_count": _BLOCKS,
        f"clip.{kind}.projection_dim": width,
        f"clip.{kind}.attention.head_count": _HEADS,
        f"clip.{kind}.attention.layer_norm_epsilon": 1e-6,
    }


def _shapes(width: int) -> Shapes:
    """39 tensors, the slowest dimension first."""
    return {
        "v.patch_embd.weight": (_EMBD, 3, PATCH, PATCH),
        "v.patch_embd.bias": (_EMBD,),
        "v.position_embd.weight": ((IMAGE // PATCH) ** 2, _EMBD),
        "v.post_ln.weight": (_EMBD,),
        "v.post_ln.bias": (_EMBD,),
        "mm.input_projection.weight": (_EMBD, width),
        "mm.soft_emb_norm.weight": (_EMBD,),
        **_block_shapes("v"),
    }


def _grid_shapes(width: int) -> Shapes:
    """Two embeddings of a patch, one for each of two frames; four patches become a row."""
    four = MERGE * MERGE * _EMBD
    return {
        "v.patch_embd.weight": (_EMBD, 3, GRID_PATCH, GRID_PATCH),
        "v.patch_embd.weight.1": (_EMBD, 3, GRID_PATCH, GRID_PATCH),
        "v.post_ln.weight": (_EMBD,),
        "v.post_ln.bias": (_EMBD,),
        "mm.0.weight": (four, four),
        "mm.0.bias": (four,),
        "mm.2.weight": (width, four),
        "mm.2.bias": (width,),
        **_block_shapes("v"),
    }


def _sound_shapes(width: int) -> Shapes:
    blocks = _block_shapes("a")
    return {
        "a.conv1d.1.weight": (_EMBD, MELS, 3),
        "a.conv1d.1.bias": (_EMBD, 1),
        "a.conv1d.2.weight": (_EMBD, _EMBD, 3),
        "a.conv1d.2.bias": (_EMBD, 1),
        "a.position_embd.weight": (FRAMES, _EMBD),
        "a.post_ln.weight": (_EMBD,),
        "a.post_ln.bias": (_EMBD,),
        "mm.a.norm_pre.weight": (_EMBD * STACK,),
        "mm.a.mlp.1.weight": (2 * _FF, _EMBD * STACK),
        "mm.a.norm_mid.weight": (_FF,),
        "mm.a.mlp.2.weight": (width, _FF),
        **{name: shape for name, shape in blocks.items() if not name.endswith("attn_k.bias")},
    }


def _block_shapes(prefix: str) -> Shapes:
    shapes: Shapes = {}
    for block in range(_BLOCKS):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (_EMBD, _EMBD))
        for name, shape in {**square, "ffn_up": (_FF, _EMBD), "ffn_down": (_EMBD, _FF)}.items():
            shapes[f"{prefix}.blk.{block}.{name}.weight"] = shape
            shapes[f"{prefix}.blk.{block}.{name}.bias"] = shape[:1]
        for name in ("ln1", "ln2"):
            shapes[f"{prefix}.blk.{block}.{name}.weight"] = (_EMBD,)
            shapes[f"{prefix}.blk.{block}.{name}.bias"] = (_EMBD,)
    return shapes
