"""Do this machine's special matrix kernels work? Tried in a child process, because the answer may be SIGILL.

llama.cpp puts weights into buffers of its own layout (AMX, REPACK) where the processor has the instructions.
GCC 12 miscompiles llama.cpp's AMX tile set-up: the first batch of two rows then ends the process. The child
multiplies a small matrix in each such buffer. Parent: `special_buffers_work`. Child: `python -m` this module.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import platform
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from stretto.models.child import limit_self, run_child

CACHE_FILE = "kernels.json"
TIMEOUT_S = 60.0
_Q4_0, _F32 = 2, 0
_COLUMNS, _ROWS, _BATCH = 256, 64, 4
_known: dict[str, bool] = {}


def special_buffers_work(cache_dir: Path | None) -> bool:
    """False: load with plain buffers, slower and safe. Found once for each machine and build."""
    version = importlib.metadata.version("llama_cpp_python")
    key = ":".join((version, _build(), platform.machine(), _processor()))
    if key not in _known:
        remembered = _read(cache_dir).get(key)
        if remembered is None:
            end = run_child(__name__, [], timeout_s=TIMEOUT_S, on_line=_ignore)
            remembered = end.code == 0
            if not end.timed_out:
                _write(cache_dir, {**_read(cache_dir), key: remembered})
        _known[key] = remembered
    return _known[key]


def _build() -> str:
    """When the library was put here: another build of the same version may work where this one fails."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return ""
    return str(Path(spec.origin).stat().st_mtime_ns)


def _ignore(line: str) -> None:
    """What the child writes is for people who start it by hand."""


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(("flags", "Features")):  # x86, ARM
                return str(zlib.crc32(line.encode()))
    return platform.processor()


def _read(cache_dir: Path | None) -> dict[str, bool]:
    if cache_dir is None:
        return {}
    try:
        found = json.loads((cache_dir / CACHE_FILE).read_bytes())
        return {str(key): bool(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(cache_dir: Path | None, found: dict[str, bool]) -> None:
    if cache_dir is not None:
        with suppress(OSError):
            cache_dir.mkdir(parents=True, exist_ok=True)
            (cache_dir / CACHE_FILE).write_text(json.dumps(found))


# ── the child ────────────────────────────────────────────────────────────────────────────────────


class _InitParams(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def _bind() -> Any:
    """ggml's functions, from the libraries that llama-cpp-python brings."""
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ggml_init": (pointer, [_InitParams]),
        "ggml_new_tensor_2d": (pointer, [pointer, ctypes.c_int, number, number]),
        "ggml_mul_mat": (pointer, [pointer, pointer, pointer]),
        "ggml_nbytes": (ctypes.c_size_t, [pointer]),
        "ggml_new_graph": (pointer, [pointer]),
        "ggml_build_forward_expand": (None, [pointer, pointer]),
        "ggml_backend_alloc_ctx_tensors": (pointer, [pointer, pointer]),
        "ggml_backend_alloc_ctx_tensors_from_buft": (pointer, [pointer, pointer]),
        "ggml_backend_tensor_set": (None, [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t]),
        "ggml_backend_graph_compute": (ctypes.c_int, [pointer, pointer]),
        "ggml_backend_reg_dev_get": (pointer, [pointer, ctypes.c_size_t]),
        "ggml_backend_reg_get_proc_address": (pointer, [pointer, ctypes.c_char_p]),
        "ggml_backend_cpu_init": (pointer, []),
        "ggml_backend_cpu_reg": (pointer, []),
    }
    libraries = [ctypes.CDLL(str(next(folder.glob(f"libggml-{name}.*")))) for name in ("base", "cpu")]
    functions: dict[str, Any] = {}
    for name, (result, arguments) in signatures.items():
        function = getattr(libraries[name.startswith("ggml_backend_cpu")], name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def _multiply(ggml: Any, backend: int, kind: int) -> None:
    """Weights in a buffer of this kind, times a batch of a few rows."""
    weights = ggml["ggml_init"](_InitParams(1 << 20, None, True))
    matrix = ggml["ggml_new_tensor_2d"](weights, _Q4_0, _COLUMNS, _ROWS)
    ggml["ggml_backend_alloc_ctx_tensors_from_buft"](weights, kind)
    size = ggml["ggml_nbytes"](matrix)
    ggml["ggml_backend_tensor_set"](matrix, ctypes.create_string_buffer(size), 0, size)
    work = ggml["ggml_init"](_InitParams(1 << 22, None, True))
    batch = ggml["ggml_new_tensor_2d"](work, _F32, _COLUMNS, _BATCH)
    graph = ggml["ggml_new_graph"](work)
    ggml["ggml_build_forward_expand"](graph, ggml["ggml_mul_mat"](work, matrix, batch))
    ggml["ggml_backend_alloc_ctx_tensors"](work, backend)
    size = ggml["ggml_nbytes"](batch)
    ggml["ggml_backend_tensor_set"](batch, ctypes.create_string_buffer(size), 0, size)
    if ggml["ggml_backend_graph_compute"](backend, graph) != 0:
        raise SystemExit(1)


def main() -> None:
    limit_self(memory_bytes=8 << 30, cpu_s=int(TIMEOUT_S), file_bytes=1 << 20)
    ggml = _bind()
    registry = ggml["ggml_backend_cpu_reg"]()
    address = ggml["ggml_backend_reg_get_proc_address"](registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    list_kinds = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    kinds = list_kinds(ggml["ggml_backend_reg_dev_get"](registry, 0))
    backend = ggml["ggml_backend_cpu_init"]()
    at = 0
    while kinds and kinds[at]:
        _multiply(ggml, backend, kinds[at])
        at += 1
    sys.stdout.write(f"{at}\n")


if __name__ == "__main__":
    main()
