"""Builds libmtmd, llama.cpp's encoders of pictures and sounds, into the llama-cpp-python of this environment.

    python tools/build_mtmd.py [--sources DIR]

llama-cpp-python is installed without it (`tools/llamacpp.cmake`), so that its wheel stays in pip's cache.
This takes the sources from the same version's source distribution and links against the libraries that are
installed: 53 files, a minute on two cores. llama.cpp's readers of files are left out; Stretto decodes files
in a process of its own. What is in `mtmd/` is ours. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY = "libmtmd.so"
RECORD = "libmtmd.version"  # what it was built of; a wheel that holds the library has none
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-w", "-DNDEBUG", "-fvisibility=hidden"),
    *("-DLLAMA_SHARED", "-DLLAMA_BUILD", "-DGGML_SHARED", "-DGGML_BACKEND_SHARED"),
)
FOLDER = Path(__file__).parent
OURS = tuple(sorted((FOLDER / "mtmd").glob("*.cpp")))
HEADERS = (*sorted((FOLDER / "mtmd").glob("*.h")), FOLDER / "amx_tiles.h")
# For the files with kernels that are called only where the processor has these instructions.
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mfma")
AMX = ("-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-include", str(FOLDER / "amx_tiles.h"))
X86_FLAGS = {
    "amx_attention": (*AVX512, *AMX),
    "avx512_attention": AVX512,
    "avx512_gelu": AVX512,
    "vnni_products": (*AVX512, "-mavx512vnni"),
}
WRAPPED = (
    "ggml_add",
    "ggml_backend_alloc_ctx_tensors_from_buft",
    "ggml_backend_buffer_free",
    "ggml_backend_buft_is_host",
    "ggml_flash_attn_ext",
    "ggml_flash_attn_ext_add_sinks",
    "ggml_gelu",
    "ggml_mul_mat",
)
LEFT_OUT = ("mtmd-cli.cpp", "mtmd-helper.cpp", "mtmd-helper-gen.cpp", "deprecation-warning.cpp")


class BuildError(Exception):
    """With one line that says what is missing."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, help="an unpacked source distribution of llama-cpp-python")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        folder = installed_libraries()
        target, made_of = folder / LIBRARY, sources_of()
        if target.exists() and built_for(folder) in ("", made_of):
            print(f"{LIBRARY} is there")
            return 0
        with tempfile.TemporaryDirectory() as scratch:
            sources = options.sources or fetch(Path(scratch))
            part = build(sources / "vendor/llama.cpp", folder, Path(scratch))
            shutil.copy2(part, target.with_suffix(".part"))
        target.with_suffix(".part").replace(target)
        (folder / RECORD).write_text(made_of, encoding="utf-8")
    except BuildError as error:
        print(f"*** {LIBRARY} was not built: {error}. Models take text only. ***", file=sys.stderr)
        return 1
    print(f"{LIBRARY} built in {time.monotonic() - started:.0f} s")
    return 0


def installed_libraries() -> Path:
    """The folder of llama.cpp's libraries in this environment."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        raise BuildError("llama-cpp-python is not installed")
    return Path(found.origin).parent / "lib"


def sources_of() -> str:
    """The version of llama-cpp-python, and on a second line the digest of what is ours."""
    version = importlib.metadata.version("llama-cpp-python")
    ours = b"".join(path.read_bytes() for path in (*OURS, *HEADERS))
    return f"{version}\n{hashlib.sha256(ours).hexdigest()}\n"


def built_for(folder: Path) -> str:
    """What the library was built of; empty: it came with the wheel."""
    record = folder / RECORD
    return record.read_text(encoding="utf-8") if record.exists() else ""


def fetch(scratch: Path) -> Path:
    """The sources of the version that is installed."""
    version = importlib.metadata.version("llama-cpp-python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps"]
    wanted = ["--no-binary", "llama-cpp-python", "--dest", str(scratch), f"llama-cpp-python=={version}"]
    if subprocess.run([*pip, *wanted], check=False).returncode:
        raise BuildError(f"the sources of llama-cpp-python {version} cannot be downloaded")
    archive = next(scratch.glob("*.tar.gz"))
    needed = (f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/{part}" for part in NEEDED)
    prefixes = tuple(needed)
    with tarfile.open(archive) as packed:
        members = [member for member in packed.getmembers() if member.name.startswith(prefixes)]
        packed.extractall(scratch, members, filter="data")
    return next(scratch.glob("llama_cpp_python-*/"))


NEEDED = ("tools/mtmd/", "include/", "ggml/include/", "vendor/")


def build(llama: Path, libraries: Path, scratch: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler ({', '.join(COMPILERS)})")
    folder = llama / "tools/mtmd"
    sources = [*folder.glob("*.cpp"), *folder.glob("models/*.cpp")]
    sources = [source for source in sources if source.name not in LEFT_OUT]
    if not sources:
        raise BuildError(f"there are no sources in {folder}")
    sources += OURS
    sources.sort(key=lambda source: -source.stat().st_size)  # the largest first: it takes longest
    headers = [f"-I{part}" for part in (folder, llama / "include", llama / "ggml/include", llama / "vendor")]

    def compiled(source: Path) -> str:
        target = scratch / f"{source.parent.name}-{source.stem}.o"
        command = [compiler, *FLAGS, *headers, "-c", str(source), "-o", str(target)]
        if source.stem in X86_FLAGS and platform.machine() == "x86_64":
            with contextlib.suppress(BuildError):  # an older compiler: without these kernels
                run([*command, *X86_FLAGS[source.stem]])
                return str(target)
        run(command)
        return str(target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    target = scratch / LIBRARY
    linked = [f"-l:{name}" for name in ("libllama.so.0", "libggml.so.0", "libggml-base.so.0")]
    origin = ["-Wl,-rpath,$ORIGIN", "-Wl,--no-undefined", "-s"]
    wrapped = [f"-Wl,--wrap={name}" for name in WRAPPED]
    run([compiler, "-shared", "-o", str(target), *objects, f"-L{libraries}", *linked, *wrapped, *origin])
    return target


def run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        line = next((line for line in done.stderr.splitlines() if "error" in line), "the compiler failed")
        raise BuildError(line[:200])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
