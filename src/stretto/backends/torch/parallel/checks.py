"""What tensor parallelism cannot do, refused before anything is loaded, and the device of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from stretto.backends.torch.config import TransformerShape
from stretto.errors import SettingsError, UnsupportedModelError


def check_supported(
    source: Path | TransformerShape, shape: TransformerShape, *, fp8: bool, kv_dtype: str, adapters: bool
) -> None:
    """Raises an error that says which setting or file cannot be combined with several ranks."""
    if not isinstance(source, Path) or source.suffix == ".gguf":
        raise UnsupportedModelError(
            "tensor_parallel needs a folder of safetensors, and this model is a GGUF file",
            hint="use the model's safetensors, or backend: llamacpp with split_mode",
        )
    if fp8 or shape.fp8:
        raise UnsupportedModelError(
            "tensor_parallel does not support FP8 weights", hint="use bf16 weights, or omit tensor_parallel"
        )
    if kv_dtype == "fp8":
        raise SettingsError(
            "kv_dtype: fp8 cannot be combined with tensor_parallel", hint="omit one of the two"
        )
    if adapters:
        raise SettingsError("adapters cannot be combined with tensor_parallel", hint="omit one of the two")


def rank_devices(names: Sequence[str], ranks: int) -> list[torch.device]:
    """The device of each rank: the named ones, else the first GPUs, else the CPU for all."""
    if list(names) == ["cpu"]:
        return [torch.device("cpu")] * ranks
    if not names:
        if not torch.cuda.is_available():
            return [torch.device("cpu")] * ranks
        names = [f"cuda:{index}" for index in range(ranks)]
    devices = [torch.device(name) for name in names]
    if len(set(devices)) != ranks:
        raise SettingsError(
            f"devices names {len(set(devices))} devices for tensor_parallel: {ranks}",
            hint="name one device for each rank, or [cpu] for all",
        )
    gpus = torch.cuda.device_count()
    if any((device.index or 0) >= gpus for device in devices if device.type == "cuda"):
        raise SettingsError(
            f"tensor_parallel: {ranks} needs {ranks} GPUs, this machine has {gpus}",
            hint="lower tensor_parallel, or set n_gpu_layers: 0 to run all ranks on the CPU",
        )
    return devices
