"""What the attention policy needs to know of a machine, expected before llama.cpp is loaded."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path

from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.kernels import support
from stretto.backends.llamacpp.kernels.families import HALF_PRECISION
from stretto.backends.llamacpp.options import CPU_DEVICE, ModelOptions

_GPU_LIBRARIES = ("*ggml-cuda*", "*ggml-metal*", "*ggml-vulkan*", "*ggml-hip*", "*ggml-sycl*")


def wants_gpu(options: ModelOptions) -> bool:
    return options.n_gpu_layers != 0 and tuple(options.devices) != (CPU_DEVICE,)


def expected(options: ModelOptions, *, in_worker: bool = False) -> Machine:
    """For an estimate: loads nothing, so that a broken build of llama.cpp cannot end the caller.

    `in_worker`: the model will run in a process of Stretto's own, not in this one.
    """
    family = support.family()
    own = (
        (support.is_wanted(options.kernels) or (in_worker and options.kernels == "auto"))
        and not support.unsupported()
        and any(map(shutil.which, support.COMPILERS))
    )
    return Machine(
        on_gpu=wants_gpu(options) and _built_for_gpu(),
        half_precision=platform.machine() in ("aarch64", "arm64")
        and HALF_PRECISION in support.cpu_features(),
        own_attention_heads=family.attention_heads if own and family else (),
        own_attention_rows_max=family.attention_rows_max if own and family else 0,
    )


def _built_for_gpu() -> bool:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).parent
    return any(next(folder.rglob(f"{pattern}.*"), None) for pattern in _GPU_LIBRARIES)
