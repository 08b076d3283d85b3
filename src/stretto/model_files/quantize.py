"""Converts a GGUF to another weight type in a child process; the result is written atomically.

Parent: `quantize`. Child: `python -m stretto.model_files.quantize SOURCE TARGET TYPE`, the only code here
that imports llama_cpp. Does not know which type is fast on which machine.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stretto.errors import ConversionError, ModelError
from stretto.model_files import gguf
from stretto.model_files.child import limit_self, run_child

Progress = Callable[[int, int], None]  # done, total

# Common names → llama.cpp's llama_ftype.
FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
}
TIMEOUT_S_MIN = 300.0
BYTES_PER_S = 2e6  # a slow machine
MEMORY_BYTES_EXTRA = 16 << 30
_TENSOR_LINE = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")


def quantize(
    source: Path,
    target: Path,
    type_name: str,
    *,
    threads: int = 0,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert `source` to `target` with the given type (`FILE_TYPES`); 0 threads: all."""
    if type_name.upper() not in FILE_TYPES:
        raise ModelError(f"{type_name!r} is not a weight type", hint=f"one of {', '.join(FILE_TYPES)}")
    size = gguf.read(source).identity.size
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)

    def on_line(line: str) -> None:
        found = _TENSOR_LINE.search(line)
        if found and progress is not None:
            progress(int(found[1]), int(found[2]))

    memory = str(3 * size + MEMORY_BYTES_EXTRA)
    arguments = [os.path.abspath(source), str(part.absolute()), type_name.upper(), "--threads", str(threads)]
    limit_s = timeout_s if timeout_s is not None else TIMEOUT_S_MIN + size / BYTES_PER_S
    try:
        end = run_child(__name__, [*arguments, "--memory-bytes", memory], timeout_s=limit_s, on_line=on_line)
        if end.code != 0 or end.timed_out:
            raise ConversionError(f"converting {source.name} to {type_name} failed: {end.reason}")
        gguf.read(part)  # the child's output is not trusted either
        put_in_place(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def put_in_place(part: Path, target: Path) -> None:
    """Rename a finished file over its target; after a power failure either the old or the new one exists."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.chmod(0o644)
    part.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ── the child ────────────────────────────────────────────────────────────────────────────────────


def _convert(source: str, target: str, file_type: int, threads: int) -> int:
    import ctypes

    import llama_cpp as library

    def on_log(level: int, text: bytes, _: object) -> None:
        line = text.decode("utf-8", "replace")
        if level >= 4:  # GGML_LOG_LEVEL_ERROR
            sys.stderr.write(line)
        elif found := _TENSOR_LINE.search(line):
            sys.stdout.write(found[0] + "\n")
            sys.stdout.flush()

    callback = library.llama_log_callback(on_log)
    library.llama_log_set(callback, ctypes.c_void_p())
    library.llama_backend_init()
    params = library.llama_model_quantize_default_params()
    params.nthread = threads
    params.ftype = file_type
    params.allow_requantize = True
    return int(library.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a GGUF to another weight type in this process.")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("type", choices=sorted(FILE_TYPES))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=64 << 30)
    options = parser.parse_args()
    limit_self(memory_bytes=options.memory_bytes, cpu_s=24 * 3600)
    code = _convert(options.source, options.target, FILE_TYPES[options.type], options.threads)
    sys.stdout.flush()
    os._exit(min(code, 1))


if __name__ == "__main__":
    main()
