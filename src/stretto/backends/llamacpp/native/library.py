"""Imports the llama.cpp bindings once and collects its log instead of printing it.

llama.cpp has one log callback per process. In Stretto's own processes (`claim_process`) ours is the only one.
In a program that embeds the SDK the callback that the program has set still gets every line, also if it was
set after ours.

Everything typed as Any in this backend comes from here: ctypes functions have no useful types. Only the low-
level `llama_cpp` API is used, never its `Llama`, server or disk cache.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from stretto.backends.llamacpp.native.cpp_library import file_of, is_mixed
from stretto.errors import InvariantError, LlamaCppMissingError

LOG_LINES_MAX = 400
_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml's log levels

_lock = threading.Lock()
_log: deque[tuple[int, str]] = deque(maxlen=LOG_LINES_MAX)
_loaded: Any = None
_own_process = False
_ours: Any = None  # our log callback: C code references it, so it lives as long as the process
_next: tuple[Any, Any, bool] | None = None  # the callback before ours, its user data, whether a default
_passing_on = threading.local()


def claim_process() -> None:
    """This process is Stretto's own. Call it before `library`."""
    global _own_process  # noqa: PLW0603
    _own_process = True


def library() -> Any:
    """The `llama_cpp` module, initialised. The first call imports it; later ones cost nothing."""
    if _loaded is None:
        with _lock:
            _load()
    return _loaded


def _load() -> None:
    global _loaded  # noqa: PLW0603 - a C library is one per process
    if _loaded is not None:
        return
    if _own_process:
        os.putenv("GGML_NO_BACKTRACE", "1")  # otherwise an abort inside ggml starts a debugger
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise LlamaCppMissingError(
            f"llama-cpp-python is not installed or does not load: {str(error)[:200]}"
        ) from error
    if is_mixed(llama_cpp.llama_cpp._lib):
        raise LlamaCppMissingError(
            "this build of llama.cpp contains a copy of libstdc++, which crashes beside the one in use here",
            hint="build llama-cpp-python with a compiler that links libstdc++ as a shared library",
        )
    _collect_log(llama_cpp)
    _load_cpu_variant(llama_cpp.llama_cpp._lib, Path(llama_cpp.__file__).parent / "lib")
    llama_cpp.llama_backend_init()
    _loaded = llama_cpp


def _load_cpu_variant(functions: Any, folder: Path) -> None:
    """In a portable build (GGML_BACKEND_DL) no CPU backend is linked: ggml loads the best variant."""
    if not hasattr(functions, "ggml_backend_cpu_init"):
        functions.ggml_backend_load_all_from_path(os.fsencode(folder))


@functools.cache
def compute_functions() -> Any:
    """ggml's functions together with those of its CPU backend: linked, or in the variant that was loaded."""
    linked = library().llama_cpp._lib
    if hasattr(linked, "ggml_backend_cpu_init"):
        return linked
    linked.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    linked.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    cpu = linked.ggml_backend_reg_by_name(b"CPU")
    ask = linked.ggml_backend_reg_get_proc_address
    inside = ask(ctypes.c_void_p(cpu), b"ggml_backend_set_n_threads") if cpu else None
    if not inside:
        raise LlamaCppMissingError("llama.cpp was built without a CPU backend for this processor")
    return ctypes.CDLL(file_of(inside))


def _collect_log(llama_cpp: Any) -> None:
    """Put our callback before the one that is set now, unless it is ours already."""
    global _ours, _next  # noqa: PLW0603
    if _ours is None:
        _ours = llama_cpp.llama_log_callback(_take_line)
    callback, user_data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(callback), ctypes.byref(user_data))
    if _address(callback) == _address(_ours):
        return
    if not _own_process:
        _next = callback, user_data, _is_default(callback)
    llama_cpp.llama_log_set(_ours, ctypes.c_void_p())


def _is_default(callback: Any) -> bool:
    """llama-cpp-python sets a callback of its own when imported, which prints every line."""
    from llama_cpp._logger import llama_log_callback as default

    return _address(callback) == _address(default)


def _address(callback: Any) -> int | None:
    return ctypes.cast(callback, ctypes.c_void_p).value


def _pass_on(level: int, text: bytes) -> None:
    """To the program's callback. The default prints only if the program asked for it (`Llama(verbose=…)`)."""
    if _next is None or getattr(_passing_on, "active", False):  # active: that callback calls ours
        return
    callback, user_data, default = _next
    if default and logging.getLogger("llama-cpp-python").level == logging.NOTSET:
        return
    _passing_on.active = True
    try:
        callback(level, text, user_data)
    finally:
        _passing_on.active = False


def _take_line(level: int, text: bytes, _: object) -> None:
    _pass_on(level, text)
    line = text.decode("utf-8", "replace")
    if level == _CONTINUED and _log:
        before = _log.pop()
        _log.append((before[0], (before[1] + line)[:2000]))
    else:
        _log.append((level, line[:2000]))


def log_callback() -> Any:
    """Our callback, for libraries beside llama.cpp that have a log of their own."""
    library()
    return _ours


def log_lines(*, errors_only: bool = False) -> list[str]:
    """llama.cpp's last log lines, oldest first."""
    least = _WARN if errors_only else 0
    return [line.rstrip() for level, line in list(_log) if level >= least and line.strip()]


def forget_log() -> None:
    """Begin to collect anew: before a call whose log is read."""
    if not _own_process:
        _collect_log(library())
    _log.clear()


def last_error() -> str:
    """llama.cpp's last line at level error, for our own messages."""
    lines = [line.strip() for level, line in list(_log) if level == _ERROR and line.strip()]
    return lines[-1][:300] if lines else "llama.cpp gave no reason"


def has_gpu() -> bool:
    return bool(library().llama_supports_gpu_offload())


@functools.cache
def half_precision() -> bool:
    """ARM with 16-bit arithmetic: it has other kernels, which start at other sizes."""
    return b"FP16_VA = 1" in library().llama_print_system_info()


def batch_invariant_rows_min() -> int:
    """Rows of a sequence in a ubatch from which rounding does not depend on their number.

    llama.cpp's GEMM kernels start at two rows, on ARM with half precision at eight; fewer use GEMV kernels.
    """
    return 8 if half_precision() else 2


class Weights:
    """llama.cpp's model handle, freed with the last reference: of models, vocabularies and contexts."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, lib.llama_model_free, handle)

    @property
    def handle(self) -> Any:
        if not self._finalizer.alive:
            raise InvariantError("model used after close()")
        return self._handle

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()
