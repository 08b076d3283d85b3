"""Puts our kernels in the place of llama.cpp's: compiled here, loaded before it, compared with it before use.

llama.cpp's libraries call their own kernels by name, and a name is looked up first among the libraries that
were loaded for all before them. So ours are loaded first, under the same names, and pass every call on to the
originals. Then both compute the same small products; only where no bit differs, and calls do come to us, ours
compute from then on.

`install` says why they do not, which is no failure: without a compiler, or on another processor, llama.cpp's
kernels are the ones that compute. Does not know models.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stretto.backends.llamacpp.kernels import verify
from stretto.backends.llamacpp.kernels.build import CompileError, compiled
from stretto.backends.llamacpp.native.library import compute_functions, library
from stretto.errors import InvariantError

LLAMA_CPP, GGML = "0.3.36", b"0.25.3"  # whose layouts the kernels know
NEEDED = frozenset({"asimddp", "asimdhp"})  # dot products, and arithmetic in half precision
BETTER = frozenset({"i8mm", "sve"})  # llama.cpp has other kernels there
BUILT_WITH = (b"DOTPROD = 1", b"FP16_VA = 1", b"REPACK = 1")  # without these its buffers do not take weights
_ORIGINALS = {
    "stretto_original_matrices": (
        "ggml_gemm_q4_0_4x4_q8_0",
        "ggml_gemm_q8_0_4x4_q8_0",
        "ggml_quantize_mat_q8_0_4x4",
        "ggml_cpu_fp32_to_fp16",
    ),
    "stretto_original_attention": ("ggml_compute_forward_flash_attn_ext",),
}

_lock = threading.Lock()
_reason: str | None = None  # None: not tried yet; "": they stand in
_ours: Any = None


def install(cache_dir: Path | None) -> str:
    """Empty when our kernels compute from now on, else why not. Once for each process, before `library`."""
    global _reason  # noqa: PLW0603 - a C library is one per process
    with _lock:
        if _reason is None:
            _reason = _unfit() or _try(cache_dir)
        return _reason


def attends(key_length: int, value_length: int) -> bool:
    """Is our attention for heads of this size? With caps, slopes or sinks it is not all the same."""
    return _ours is not None and key_length == value_length and key_length in verify.HEADS


def computes_all_attention(work: Callable[[], object]) -> bool:
    """Do this, and answer whether all attention in it was computed by our kernel."""
    if _ours is None:
        work()
        return False
    attended, passed_on = (
        ctypes.c_int.in_dll(_ours, f"stretto_{name}") for name in ("attended", "passed_on")
    )
    with _lock:
        attended.value = passed_on.value = 0
        work()
        return bool(attended.value and not passed_on.value)


@contextmanager
def paused() -> Iterator[None]:
    """Meanwhile llama.cpp's kernels compute, for whoever compares. Nothing else may compute."""
    if _ours is not None:
        switch(_ours).value = 0
    try:
        yield
    finally:
        if _ours is not None:
            switch(_ours).value = 1


def switch(ours: Any) -> ctypes.c_int:
    """1: our kernels compute, 0: llama.cpp's. Never to be changed during a pass."""
    return ctypes.c_int.in_dll(ours, "stretto_own")


def fits(system: str, machine: str, features: frozenset[str]) -> bool:
    return system == "Linux" and machine == "aarch64" and features >= NEEDED and not features & BETTER


def _unfit() -> str:
    if not fits(platform.system(), platform.machine(), _features()):
        return "not a processor they are for"
    if _version() != LLAMA_CPP:
        return f"llama-cpp-python is not {LLAMA_CPP}"
    return "llama.cpp was loaded before them" if "llama_cpp" in sys.modules else ""


def _version() -> str:
    try:
        return importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:
        return ""  # `library` says so, and what to do


def _features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("Features")), "").split())


def _try(cache_dir: Path | None) -> str:
    global _ours  # noqa: PLW0603
    try:
        ours = _loaded(cache_dir)
    except CompileError as error:
        return str(error)
    except OSError as error:
        return f"they cannot be loaded: {error}"[:200]
    llama_cpp = library()
    theirs = compute_functions()
    for setter, names in _ORIGINALS.items():
        getattr(ours, setter)(*[_address(theirs, name) for name in names])
    theirs.ggml_version.restype = ctypes.c_char_p
    if theirs.ggml_version() != GGML:
        return f"ggml is not {GGML.decode()}"
    if not all(feature in llama_cpp.llama_print_system_info() for feature in BUILT_WITH):
        return "llama.cpp was built without dot products or half precision"
    try:
        difference = verify.difference(ours, theirs)
    except (AttributeError, InvariantError) as error:
        difference = str(error)
    if not difference:
        switch(ours).value = 1
        _ours = ours
    return difference


def _loaded(cache_dir: Path | None) -> Any:
    """From the cache; where that cannot be written or executed, from a folder that ends here."""
    if cache_dir is not None:
        try:
            return ctypes.CDLL(str(compiled(cache_dir / "kernels")), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(compiled(Path(folder))), mode=ctypes.RTLD_GLOBAL)


def _address(theirs: Any, name: str) -> ctypes.c_void_p:
    """What it does not have it does not call."""
    function: Any = getattr(theirs, name, None)
    return ctypes.cast(function, ctypes.c_void_p)
