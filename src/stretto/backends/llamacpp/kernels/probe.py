"""Whether this machine's special matrix kernels work: tried in a child process, because the answer may be
SIGILL.

llama.cpp puts weights into buffers with their own layout (AMX, REPACK) where the processor has the
instructions. GCC 12 miscompiles llama.cpp's AMX tile set-up: the first batch of two rows then ends the
process. The child multiplies a small matrix in each such buffer. Parent: `special_buffers_work`. Child:
`python -m` this module.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
from contextlib import suppress
from pathlib import Path

from stretto.backends.llamacpp.kernels.support import build_of_llama_cpp, processor
from stretto.backends.llamacpp.native.ggml import F32, Q4_0, Ggml
from stretto.model_files.child import limit_self, run_child

CACHE_FILE = "kernels.json"
TIMEOUT_S = 60.0
_COLUMNS, _ROWS, _BATCH = 256, 64, 4
_known: dict[str, bool] = {}


def special_buffers_work(cache_dir: Path | None) -> bool:
    """False: load with plain buffers, slower and safe. Determined once for each machine and build."""
    if importlib.util.find_spec("llama_cpp") is None:
        return False
    version = importlib.metadata.version("llama_cpp_python")
    key = ":".join((version, build_of_llama_cpp(), platform.machine(), processor()))
    if key not in _known:
        remembered = _read(cache_dir).get(key)
        if remembered is None:
            end = run_child(__name__, [], timeout_s=TIMEOUT_S, on_line=_ignore)
            remembered = end.code == 0
            if not end.timed_out:
                _write(cache_dir, {**_read(cache_dir), key: remembered})
        _known[key] = remembered
    return _known[key]


def _ignore(line: str) -> None:
    """The child's output is for people who start it by hand."""


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


def _multiply(ggml: Ggml, kind: int) -> None:
    """Multiply weights in a buffer of this type by a few rows."""
    weights = ggml.context()
    matrix = ggml.tensor(weights, Q4_0, (_COLUMNS, _ROWS))
    ggml.backend_alloc_ctx_tensors_from_buft(weights, kind)
    ggml.fill(matrix, bytes(ggml.nbytes(matrix)))
    work = ggml.context()
    batch = ggml.tensor(work, F32, (_COLUMNS, _BATCH))
    ggml.computed(work, {batch: bytes(ggml.nbytes(batch))}, ggml.mul_mat(work, matrix, batch))


def main() -> None:
    limit_self(memory_bytes=8 << 30, cpu_s=int(TIMEOUT_S), file_bytes=1 << 20)
    ggml = Ggml()
    kinds = ggml.special_buffers()
    for kind in kinds.values():
        _multiply(ggml, kind)
    sys.stdout.write(f"{len(kinds)}\n")


if __name__ == "__main__":
    main()
