"""Devices by name: what a model's `devices` setting means to llama.cpp.

llama.cpp takes a NULL-terminated list of devices to offload to; the processor is not one of them. Unknown
names are refused before anything is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from stretto.backends.llamacpp.native.library import library
from stretto.backends.llamacpp.options import CPU_DEVICE
from stretto.errors import ModelLoadError


def device_names() -> list[str]:
    """ggml's names of the devices that this build supports: CPU, CUDA0, Metal …"""
    functions = _functions()
    devices = map(functions.ggml_backend_dev_get, range(functions.ggml_backend_dev_count()))
    return [functions.ggml_backend_dev_name(device).decode() for device in devices]


def device_list(names: Sequence[str]) -> Any:
    """A NULL-terminated array of handles; empty for the processor alone, so that nothing is offloaded."""
    known = device_names()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ModelLoadError(
            f"devices names {unknown[0][:80]!r}, which llama.cpp does not have here",
            hint=f"this machine has {', '.join(known)}; or leave devices out",
        )
    if CPU_DEVICE in names and len(names) > 1:
        raise ModelLoadError(
            "devices names CPU beside others",
            hint="name GPUs only; n_gpu_layers says how much stays on the CPU",
        )
    functions = _functions()
    found = [functions.ggml_backend_dev_by_name(name.encode()) for name in names if name != CPU_DEVICE]
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)


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
    return functions
