"""Projectors with random weights for a text model: what they cost is real, what the model sees is not.

For measurements of time alone, with a model whose ticks are long. A picture becomes 256 rows in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import ROOT
from tools.eyes import export

HEAD = 64
FOLDER = ROOT / "build" / "bench-models"


@dataclass(frozen=True, slots=True)
class Tower:
    """`picture`: pixels of a side. `merged`: patches of a side that become one row."""

    layers: int
    width: int
    picture: int
    patch: int
    merged: int = 1

    @property
    def patches(self) -> int:
        return (self.picture // self.patch) ** 2

    @property
    def row_width(self) -> int:
        """What the projection takes: merged patches are one row."""
        return self.merged**2 * self.width

    def path(self, rows_width: int) -> Path:
        return FOLDER / f"mmproj-random-{self.layers}x{self.width}x{self.picture}-to-{rows_width}.gguf"


# SigLIP base with 1,024 patches, which SmolVLM-256M has in front of the same language model. That merges
# 4 × 4 patches to a row; here it is 2 × 2, as in InternVL.
SIGLIP = Tower(layers=12, width=768, picture=512, patch=16, merged=2)
# half the layers, two thirds of the width and a quarter of the patches
SMALL = Tower(layers=6, width=512, picture=128, patch=8)


def make(tower: Tower, rows_width: int) -> Path:
    """The path of a projector that makes rows of this width."""
    path = tower.path(rows_width)
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        export.write_projector(part, _sizes(tower, rows_width), _weights(tower, rows_width), "q8_0")
        part.replace(path)
    return path


def _sizes(tower: Tower, rows_width: int) -> dict[str, Any]:
    return {
        "tower_width": tower.width,
        "tower_layers": tower.layers,
        "width": rows_width,
        "head": HEAD,
        "tower_eps": 1e-6,
        "picture": tower.picture,
        "patch": tower.patch,
        "merged": tower.merged,
    }


def _weights(tower: Tower, rows_width: int) -> export.Weights:
    random = np.random.default_rng(0)
    made: export.Weights = {}
    own, patch = tower.width, tower.patch

    def linear(name: str, out: int, given: int) -> None:
        made[f"{name}.weight"] = (random.standard_normal((out, given)) * 0.02).astype(np.float32)
        made[f"{name}.bias"] = np.zeros(out, np.float32)

    def norm(name: str, width: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = np.ones(width, np.float32), np.zeros(width, np.float32)

    linear("tower.patch_embd", own, 3 * patch * patch)
    made["tower.patch_embd.weight"] = made["tower.patch_embd.weight"].reshape(own, 3, patch, patch)
    made["tower.class_embd"] = np.zeros(own, np.float32)
    made["tower.position_embd"] = (random.standard_normal((tower.patches + 1, own)) * 0.02).astype(np.float32)
    for layer in range(tower.layers):
        name = f"tower.blk.{layer}"
        linear(f"{name}.attn_qkv", 3 * own, own)
        linear(f"{name}.attn_out", own, own)
        linear(f"{name}.ffn_up", 4 * own, own)
        linear(f"{name}.ffn_down", own, 4 * own)
        norm(f"{name}.ln1", own)
        norm(f"{name}.ln2", own)
    norm("tower.mlp_norm", tower.row_width)
    linear("tower.mlp_up", rows_width, tower.row_width)
    linear("tower.mlp_down", rows_width, rows_width)
    return made
