"""Tiny random adapters (LoRA) for tests, made for a given model: GGUF for llama.cpp, PEFT folders for torch.

Every adapter changes the model's output clearly: its products are about as large as the model's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stretto.model_files import gguf
from stretto.testing.tiny_models import Value, file_parts, key_value

GGUF_TARGETS = ("attn_q.weight", "attn_v.weight", "attn_output.weight", "ffn_down.weight")
STRENGTH = 12.0  # alpha over rank


def gguf_adapter(
    model: Path,
    path: Path,
    *,
    seed: int,
    rank: int = 4,
    targets: Sequence[str] = GGUF_TARGETS,
    strength: float = STRENGTH,
    keys: Mapping[str, Value] | None = None,
    rank_b: int | None = None,
) -> Path:
    """An adapter for a GGUF model. `keys` replace or add header keys; `rank_b` makes a pair that is wrong."""
    file = gguf.read(model)
    header: dict[str, Value] = {
        "general.architecture": file.architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(rank * strength),
        **(keys or {}),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in file.tensors.items():
        if name.endswith(tuple(targets)) and len(tensor.dims) == 2:
            shapes[f"{name}.lora_a"] = (rank, tensor.dims[0])
            shapes[f"{name}.lora_b"] = (tensor.dims[1], rank_b or rank)
    path.write_bytes(
        b"".join(file_parts([key_value(key, value) for key, value in header.items()], shapes, seed))
    )
    return path


def peft_adapter(
    folder: Path,
    shapes: Mapping[str, tuple[int, int]],
    *,
    seed: int,
    rank: int = 4,
    alpha: float | None = None,
    config: Mapping[str, object] | None = None,
) -> Path:
    """A folder as PEFT saves it. `shapes`: module name -> (outputs, inputs), as in the model's file."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        key = f"base_model.model.{name}"
        tensors[f"{key}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.2
        tensors[f"{key}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.2
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha if alpha is not None else 2.0 * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        "bias": "none",
        **(config or {}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
