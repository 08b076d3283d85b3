"""Puts our kernels in the place of llama.cpp's: compiled here, loaded before it, compared with it before use.

llama.cpp's libraries call their own kernels by name, and a name is looked up first among the libraries that
were loaded for all before them. So ours are loaded first, under the same names. Then both compute the same
small products: where a bit differs, or a call does not come to us, every call goes on to the originals.

`stand_in` says why it did not, and never fails: without a compiler, or on another processor, llama.cpp's
kernels are the ones that compute. Does not know models.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stretto.backends.llamacpp.arm import comparing
from stretto.backends.llamacpp.ggml import library_file
from stretto.backends.llamacpp.library import library
from stretto.errors import InvariantError

LLAMA_CPP = "0.3.36"  # whose layouts the kernels know
FOLDER = Path(__file__).parent
SOURCES = ("matrices.c", "attention.c")
HEADERS = ("standing_in.h",)
COMPILERS = ("cc", "gcc", "clang")
# Sums must not be contracted: what is fused and what is not decides the last bit.
FLAGS = (
    "-std=c11",
    "-O3",
    "-march=armv8.2-a+dotprod+fp16",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
)
NEEDED = frozenset({"asimddp", "asimdhp"})  # dot products, and arithmetic in half precision
BETTER = frozenset({"i8mm", "sve"})  # llama.cpp has other kernels there
COMPILE_S = 120.0
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


def stand_in(cache_dir: Path | None) -> str:
    """Empty when our kernels compute from now on, else why not. Once for each process, before `library`."""
    global _reason  # noqa: PLW0603 - a C library is one per process
    with _lock:
        if _reason is None:
            _reason = _unfit() or _try(cache_dir)
        return _reason


def attends(key_length: int, value_length: int) -> bool:
    """Is our attention for heads of this size? With caps, slopes or sinks it is not all the same."""
    return _ours is not None and key_length == value_length and key_length in comparing.HEADS


def attention_is_ours(work: Callable[[], object]) -> bool:
    """Do this, and answer whether all attention in it was computed by our kernel."""
    if _ours is None:
        work()
        return False
    attended, passed_on = (
        ctypes.c_int.in_dll(_ours, f"stretto_{name}") for name in ("attended", "passed_on")
    )
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


def _unfit() -> str:
    if not fits(platform.system(), platform.machine(), _features()):
        return "not a processor they are for"
    if _version() != LLAMA_CPP:
        return f"llama-cpp-python is not {LLAMA_CPP}"
    if library_file("cpu") is None:
        return "llama.cpp is not made of libraries here"
    return "llama.cpp was loaded before them" if "llama_cpp" in sys.modules else ""


def fits(system: str, machine: str, features: frozenset[str]) -> bool:
    return system == "Linux" and machine == "aarch64" and features >= NEEDED and not features & BETTER


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
        if cache_dir is not None:
            ours = _load(compiled(cache_dir / "kernels"))
        else:
            with tempfile.TemporaryDirectory() as folder:
                ours = _load(compiled(Path(folder)))
    except (OSError, subprocess.SubprocessError) as error:
        return _short(error)
    library()
    theirs = ctypes.CDLL(str(library_file("cpu")))
    for setter, names in _ORIGINALS.items():
        getattr(ours, setter)(*[_address(theirs, name) for name in names])
    try:
        difference = comparing.difference(ours, theirs)
    except (AttributeError, InvariantError) as error:
        difference = str(error)
    if difference:
        switch(ours).value = 0
    else:
        _ours = ours
    return difference


def _load(path: Path) -> Any:
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _address(theirs: Any, name: str) -> ctypes.c_void_p:
    """What it does not have it does not call."""
    function: Any = getattr(theirs, name, None)
    return ctypes.cast(function, ctypes.c_void_p)


def switch(ours: Any) -> ctypes.c_int:
    """1: our kernels compute, 0: llama.cpp's."""
    return ctypes.c_int.in_dll(ours, "stretto_own")


def compiled(folder: Path) -> Path:
    """The library, from `folder` or compiled into it now. Raises OSError or SubprocessError."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"no C compiler ({', '.join(COMPILERS)})")
    content = b"".join((FOLDER / name).read_bytes() for name in (*SOURCES, *HEADERS))
    digest = hashlib.sha256(" ".join((LLAMA_CPP, compiler, *FLAGS)).encode() + content).hexdigest()[:16]
    library_file = folder / f"arm-{digest}.so"
    if _is_ours_alone(library_file):
        return library_file
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # readable by us alone
        part = Path(scratch) / library_file.name
        command = [compiler, *FLAGS, "-o", str(part), *[str(FOLDER / name) for name in SOURCES], "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S, stdin=subprocess.DEVNULL)
        part.chmod(0o500)
        part.replace(library_file)
    return library_file


def _is_ours_alone(path: Path) -> bool:
    """Written by this user, and by nobody else since: it is code that runs in this process."""
    try:
        found = path.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def _short(error: Exception) -> str:
    said = getattr(error, "stderr", None) or b""
    lines = said.decode("utf-8", "replace").splitlines() if isinstance(said, bytes) else []
    return "they do not compile: " + next((line for line in lines if "error" in line), str(error))[:200]
