"""A build of llama.cpp with a copy of libstdc++ in it is refused with a message: it would end the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.backends.llamacpp.native import cpp_library

SOURCE = '#include <locale>\nextern "C" const void *classic() { return &std::locale::classic(); }\n'
FAKE = "import ctypes\n_lib = ctypes.CDLL({path!r})\n"
MIXED = """
import ctypes
from stretto.backends.llamacpp.native import cpp_library
ctypes.CDLL({first!r})
print(cpp_library.is_mixed(ctypes.CDLL({path!r})))
"""
REFUSED = """
import ctypes
ctypes.CDLL("libstdc++.so.6")
from stretto.backends.llamacpp.native.library import library
from stretto.errors import LlamaCppMissingError
try:
    library()
except LlamaCppMissingError as error:
    print(error.message, "|", error.hint)
"""


def compiled(folder: Path, *flags: str) -> Path:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, library = folder / "classic.cpp", folder / "libclassic.so"
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", *flags, "-o", str(library), str(source)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler cannot link with {flags}")
    return library


def printed(script: str, *, path: Path | None = None) -> str:
    """Of a process of its own: what is loaded stays loaded."""
    folders = os.pathsep.join([*([str(path)] if path else []), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_copy_beside_a_libstdcxx_that_came_before_is_mixed(tmp_path):
    copy = compiled(tmp_path, "-static-libstdc++")
    assert printed(MIXED.format(first="libstdc++.so.6", path=str(copy))) == "True"


def test_a_copy_that_came_first_is_not(tmp_path):
    copy = compiled(tmp_path, "-static-libstdc++")
    assert printed(MIXED.format(first=str(copy), path=str(copy))) == "False"


def test_neither_is_the_shared_one_nor_a_library_without():
    for path in ("libstdc++.so.6", "libc.so.6"):
        assert printed(MIXED.format(first="libstdc++.so.6", path=path)) == "False"


def test_the_installed_build_shares_it():
    llama_cpp = pytest.importorskip("llama_cpp")
    assert not cpp_library.is_mixed(llama_cpp.llama_cpp._lib)


def test_a_build_with_a_copy_is_refused_with_a_message(tmp_path):
    package = tmp_path / "llama_cpp"
    package.mkdir()
    copy = compiled(tmp_path, "-static-libstdc++")
    (package / "__init__.py").write_text("from . import llama_cpp\n")
    (package / "llama_cpp.py").write_text(FAKE.format(path=str(copy)))
    said = printed(REFUSED, path=tmp_path)
    assert "contains a copy of libstdc++" in said
    assert "shared library" in said
