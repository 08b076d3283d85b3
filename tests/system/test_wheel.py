"""A built wheel, installed into an environment of its own, has everything it needs and runs.

Only Stretto is installed there: what it depends on is taken from the environment of the tests, because
compiling llama.cpp once more would take ten minutes and say nothing new.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from stretto.testing import tiny_models

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("stretto-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def run(installed: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "STRETTO_CACHE_DIR": str(home)}
    return subprocess.run(
        [str(installed / arguments[0]), *arguments[1:]],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_it_is_the_wheel_that_runs_and_its_page_is_in_it(installed, tmp_path):
    code = (
        "import stretto, stretto.server.dashboard.assets as a;"
        "print(stretto.__file__); print(sorted(a.ASSET_NAMES))"
    )
    ended = run(installed, tmp_path, "python", "-c", code)
    place, assets = ended.stdout.splitlines()
    assert Path(place).is_relative_to(installed.parent)
    assert "index.html" in assets
    assert "main.js" in assets


def test_the_command_line_and_the_sdk_run(installed, tmp_path):
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
