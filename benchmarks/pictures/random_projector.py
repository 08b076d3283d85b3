"""A projector with random weights for a text model: what it costs is real, what the model sees is not.

For measurements of time alone, with a model whose ticks are long: the tower has half the layers and two
thirds of the width of SigLIP base, and a picture becomes 256 rows, as with the model that sees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import ROOT
from tools.eyes import export
from tools.eyes.dataset import PICTURE_ROWS
from tools.eyes.drawing import PATCH

LAYERS, WIDTH, HEAD = 6, 512, 64
FOLDER = ROOT / "build" / "bench-models"


def make(rows_width: int) -> Path:
    """The path of a projector that makes rows of this width."""
    path = FOLDER / f"mmproj-random-{LAYERS}x{WIDTH}-to-{rows_width}.gguf"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        export.write_projector(part, _sizes(rows_width), _weights(rows_width), "q8_0")
        part.replace(path)
    return path


def _sizes(rows_width: int) -> dict[str, Any]:
    return {
        "tower_width": WIDTH,
        "tower_layers": LAYERS,
        "width": rows_width,
        "head": HEAD,
        "tower_eps": 1e-6,
    }


def _weights(rows_width: int) -> export.Weights:
    random = np.random.default_rng(0)
    made: export.Weights = {}

    def linear(name: str, out: int, given: int) -> None:
        made[f"{name}.weight"] = (random.standard_normal((out, given)) * 0.02).astype(np.float32)
        made[f"{name}.bias"] = np.zeros(out, np.float32)

    def norm(name: str) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    linear("tower.patch_embd", WIDTH, 3 * PATCH * PATCH)
    made["tower.patch_embd.weight"] = made["tower.patch_embd.weight"].reshape(WIDTH, 3, PATCH, PATCH)
    made["tower.class_embd"] = np.zeros(WIDTH, np.float32)
    made["tower.position_embd"] = (random.standard_normal((PICTURE_ROWS + 1, WIDTH)) * 0.02).astype(
        np.float32
    )
    for layer in range(LAYERS):
        name = f"tower.blk.{layer}"
        linear(f"{name}.attn_qkv", 3 * WIDTH, WIDTH)
        linear(f"{name}.attn_out", WIDTH, WIDTH)
        linear(f"{name}.ffn_up", 4 * WIDTH, WIDTH)
        linear(f"{name}.ffn_down", WIDTH, 4 * WIDTH)
        norm(f"{name}.ln1")
        norm(f"{name}.ln2")
    norm("tower.mlp_norm")
    linear("tower.mlp_up", rows_width, WIDTH)
    linear("tower.mlp_down", rows_width, rows_width)
    return made
