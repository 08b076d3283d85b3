"""Counts the kernels that Triton compiles, or loads from its cache, in this process.

Either takes from milliseconds to seconds in the path of a request, so none should happen after a model is
ready. Triton's own cache directory is used, one for each combination of GPU, driver, torch, Triton and
kernel sources.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
CACHES_KEPT = 4


class CompileCount:
    """`late`: kernels compiled outside of `preparing`."""

    def __init__(self) -> None:
        self.late = 0
        self._next: Callable[..., Any] | None = None
        self._watching = False
        self._thread = threading.local()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Compilations of this thread, which loads a model, are not late; other models may run beside it."""
        self._thread.preparing = True
        try:
            yield
        finally:
            self._thread.preparing = False

    def watch(self, runtime: Any) -> None:
        """`runtime`: triton.knobs.runtime. A hook that is set already is called too."""
        if not self._watching:
            self._next = runtime.jit_post_compile_hook
            runtime.jit_post_compile_hook = self._compiled
            self._watching = True

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self._thread, "preparing", False):
            self.late += 1
        return self._next(*args, **kwargs) if self._next is not None else None


COMPILES = CompileCount()


def use_kernel_cache(home: Path | None, device: torch.device) -> None:
    """Watches Triton, and lets it cache under `home` unless the user chose another directory."""
    if device.type != "cuda":
        return
    try:
        from triton import knobs
    except ImportError:
        return
    COMPILES.watch(knobs.runtime)
    if home is not None and knobs.cache.dir == knobs.cache.get_triton_dir("cache"):
        target = home / "kernels" / cache_key(device)
        with suppress(OSError):
            target.mkdir(parents=True, exist_ok=True)
            target.touch()
            remove_old_caches(target.parent)
            knobs.cache.dir = str(target)


def cache_key(device: torch.device) -> str:
    """GPU, driver, torch, Triton and the sources of our kernels."""
    import triton

    driver = DRIVER_VERSION.read_text(encoding="utf-8") if DRIVER_VERSION.exists() else ""
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    facts = (name, capability, driver, torch.__version__, triton.__version__)
    digest = hashlib.sha256(repr(facts).encode())
    for source in sorted(Path(__file__).parent.glob("kernels/**/*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def remove_old_caches(parent: Path, kept: int = CACHES_KEPT) -> None:
    """Keeps the caches that were used last: each upgrade would leave one behind."""
    found = sorted(parent.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in found[kept:]:
        shutil.rmtree(old, ignore_errors=True)
