"""Decides whether the SDK runs a model in the caller's process or in a worker process of its own.

On a GPU a tick takes a few milliseconds of which planning needs a part: it must not wait for an interpreter
lock that the program and the text of its requests hold. A CPU is busy with the pass itself, so a second
process would gain nothing. Looks at settings and device files only, so that torch is not imported here.
"""

from __future__ import annotations

from pathlib import Path

from stretto.settings import ModelSettings, Settings

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL


def runs_in_child(settings: Settings, name: str, *, asked: bool | None, has_gpu: bool | None = None) -> bool:
    """`asked`: the caller's keyword, before the setting. `has_gpu`: for tests."""
    wanted = settings.runtime.own_process if asked is None else asked
    if wanted != "auto":
        return wanted
    chosen = chosen_settings(settings, name)
    if not _uses_torch(chosen, name) or chosen.n_gpu_layers == 0:
        return False
    device = chosen.devices[0] if chosen.devices else "auto"
    if device != "auto":
        return not device.startswith("cpu")
    return has_gpu if has_gpu is not None else any(Path(file).exists() for file in GPU_FILES)


def chosen_settings(settings: Settings, name: str) -> ModelSettings:
    return settings.model(name) if name in settings.models else settings.defaults


def _uses_torch(chosen: ModelSettings, name: str) -> bool:
    if chosen.backend == "auto":
        source = chosen.path or name
        return bool(source) and Path(source).expanduser().is_dir()
    return chosen.backend == "torch"
