"""Devices by name: what the settings `devices` and `override_tensors` mean to llama.cpp.

llama.cpp takes a NULL-terminated list of devices to offload to; the processor is not one of them. Unknown
names are refused before anything is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from stretto.backends.llamacpp.native.library import library
from stretto.backends.llamacpp.options import CPU_DEVICE
from stretto.backends.llamacpp.placement import Override
from stretto.errors import ModelLoadError

_GPU_TYPES = (1, 2)  # ggml's numbers: a GPU of its own, one that shares the machine's memory


def device_names() -> list[str]:
    """ggml's names of the devices that this build supports: CPU, CUDA0, Metal …"""
    functions = _functions()
    devices = map(functions.ggml_backend_dev_get, range(functions.ggml_backend_dev_count()))
    return [functions.ggml_backend_dev_name(device).decode() for device in devices]


def device_list(names: Sequence[str]) -> Any:
    """A NULL-terminated array of handles; empty for the processor alone, so that nothing is offloaded."""
    _require_known("devices", names)
    if CPU_DEVICE in names and len(names) > 1:
        raise ModelLoadError(
            "devices names CPU beside others",
            hint="name GPUs only; n_gpu_layers says how much stays on the CPU",
        )
    functions = _functions()
    found = [functions.ggml_backend_dev_by_name(name.encode()) for name in names if name != CPU_DEVICE]
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)


def gpu_names(names: Sequence[str] = ()) -> list[str]:
    """The devices that a model may be offloaded to; `names`: only those."""
    functions = _functions()
    handles = map(functions.ggml_backend_dev_get, range(functions.ggml_backend_dev_count()))
    found = [
        functions.ggml_backend_dev_name(handle).decode()
        for handle in handles
        if functions.ggml_backend_dev_type(handle) in _GPU_TYPES
    ]
    return [name for name in found if not names or name in names]


class TensorOverride(ctypes.Structure):
    """llama.cpp's `llama_model_tensor_buft_override`, which llama-cpp-python does not bind."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def override_list(overrides: Sequence[Override]) -> Any:
    """An array that ends with an empty entry. It must live until the load is over."""
    functions = _functions()
    for each in overrides:
        _require_known("override_tensors", [each.device])
    entries = [
        TensorOverride(
            each.pattern.encode(),
            functions.ggml_backend_dev_buffer_type(functions.ggml_backend_dev_by_name(each.device.encode())),
        )
        for each in overrides
    ]
    return (TensorOverride * (len(entries) + 1))(*entries, TensorOverride())


def _require_known(setting: str, names: Sequence[str]) -> None:
    known = device_names()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ModelLoadError(
            f"{setting} names {unknown[0][:80]!r}, which llama.cpp does not have here",
            hint=f"this machine has {', '.join(known)}; or leave {setting} out",
        )


def _functions() -> Any:
    functions = library().llama_cpp._lib
    functions.ggml_backend_dev_count.restype = ctypes.c_size_t
    functions.ggml_backend_dev_count.argtypes = []
    functions.ggml_backend_dev_get.restype = ctypes.c_void_p
    functions.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    functions.ggml_backend_dev_name.restype = ctypes.c_char_p
    functions.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    functions.ggml_backend_dev_by_name.restype = ctypes.c_void_p
    functions.ggml_backend_dev_by_name.argtypes = [ctypes.c_char_p]
    functions.ggml_backend_dev_type.restype = ctypes.c_int
    functions.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    functions.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
    functions.ggml_backend_dev_buffer_type.argtypes = [ctypes.c_void_p]
    return functions
