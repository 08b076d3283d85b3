"""Reads adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

Everything is checked against the model's own matrices before anything is written to the device. Weights are
mapped from safetensors and copied, never unpickled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stretto.backends.torch.config import read_json
from stretto.errors import AdapterFileError, ModelError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RANK_MAX = 1_024
_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_UNSUPPORTED: Mapping[str, object] = {
    "use_dora": False,
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "alpha_pattern": {},
    "lora_bias": False,
}

Shapes = Mapping[str, tuple[int, int]]  # module -> outputs, inputs


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """Matrices on the host: module -> A [rank, in], B [out, rank] with the adapter's own scale in it."""

    matrices: Mapping[str, tuple[torch.Tensor, torch.Tensor]]

    @property
    def size_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for pair in self.matrices.values() for t in pair)


def rank_of(folder: Path) -> int:
    """The rank that the folder's settings name; 0 if they cannot be read."""
    try:
        config = _config(folder)
    except AdapterFileError:
        return 0
    patterns = config.get("rank_pattern") or {}
    return max([int(config["r"]), *(int(rank) for rank in patterns.values())])


def read_peft(folder: Path, shapes: Shapes, *, rank_max: int) -> PeftAdapter:
    """An adapter for a model with these matrices. Raises AdapterFileError."""
    config = _config(folder)
    tensors = _tensors(folder)
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise AdapterFileError(f"{folder.name} has a tensor {name[:120]} that is not part of a LoRA")
        module = found[1]
        if module not in shapes:
            raise _wrong_base(
                folder, f"changes {module[:120]}, which the model does not have or cannot change"
            )
        pairs.setdefault(module, {})[found[2]] = tensor
    if not pairs:
        raise AdapterFileError(f"{folder.name} changes nothing: it has no tensors")
    matrices = {}
    for module, pair in pairs.items():
        if len(pair) != 2:
            raise AdapterFileError(f"{folder.name}: {module} has only one of its two matrices")
        matrices[module] = _checked(folder, module, pair["A"], pair["B"], shapes[module], config, rank_max)
    return PeftAdapter(matrices)


def _checked(
    folder: Path,
    module: str,
    a: torch.Tensor,
    b: torch.Tensor,
    shape: tuple[int, int],
    config: Mapping[str, Any],
    rank_max: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
        raise AdapterFileError(
            f"{folder.name}: the matrices of {module} are {tuple(a.shape)} and {tuple(b.shape)}",
            hint="both need the same rank: save the adapter again",
        )
    rank = a.shape[0]
    if not 1 <= rank <= rank_max:
        raise AdapterFileError(
            f"{folder.name}: {module} has rank {rank}, and {CONFIG} says {config['r']}",
            hint="correct r, or load the model again if the folder was changed since",
        )
    if (b.shape[0], a.shape[1]) != shape:
        text = f"has {module} for {a.shape[1]} × {b.shape[0]}, and the model's is {shape[1]} × {shape[0]}"
        raise _wrong_base(folder, text)
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise AdapterFileError(f"{folder.name}: {module} holds numbers that are not finite")
    return a, b.float() * scale


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise AdapterFileError(
            f"there is no adapter folder {folder}",
            hint=f"an adapter of a safetensors model is a folder with {CONFIG} and {WEIGHTS}",
        )
    try:
        config = dict(read_json(folder / CONFIG))
    except (ModelError, OSError) as error:
        raise AdapterFileError(f"{folder.name} has no readable {CONFIG}") from error
    if config.get("peft_type") != "LORA":
        raise AdapterFileError(f"{folder.name} is a {str(config.get('peft_type'))[:40]} adapter, not a LoRA")
    for key, plain in _UNSUPPORTED.items():
        if config.get(key, plain) not in (plain, None, False, [], {}):
            raise AdapterFileError(f"{folder.name} uses {key}, which is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterFileError(f"{folder.name} changes biases, which is not supported")
    r, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(r, int) or not 1 <= r <= RANK_MAX or not isinstance(alpha, int | float):
        raise AdapterFileError(f"{folder.name}: {CONFIG} needs r (1 to {RANK_MAX}) and lora_alpha")
    return config


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        raise AdapterFileError(
            f"{folder.name} has no {WEIGHTS}", hint="save the adapter with safe_serialization=True"
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise AdapterFileError(f"{path} cannot be read: {str(error)[:120]}") from error


def _wrong_base(folder: Path, text: str) -> AdapterFileError:
    return AdapterFileError(
        f"adapter {folder.name} {text}", hint="it was trained on another base model: use that one"
    )
