"""What is asked often is answered at once: nothing heavy is imported for it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.unit.cli.conftest import environment

CPU_S_MAX = 0.3
HEAVY = (
    "llama_cpp",
    "numpy",
    "pydantic",
    "yaml",
    "llguidance",
    "minijinja",
    "stretto.model_files",
    "stretto.llm",
)


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["--help"]])
def test_it_answers_in_a_third_of_a_second(tmp_path, arguments):
    """Processor time, the least of five: the wall clock of a shared machine proves nothing."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "stretto", *arguments],
            check=True,
            capture_output=True,
            env=environment(tmp_path),
            cwd=tmp_path,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < CPU_S_MAX, times


@pytest.mark.parametrize("arguments", [["version"], ["--help"]])
def test_nothing_heavy_is_imported(tmp_path, arguments):
    source = f"""
import sys
from stretto.cli import main
main({arguments!r})
found = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"imported: {{found}}" if found else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        check=False,
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_no_colour_in_a_pipe(shell):
    assert "\x1b" not in shell("--help").out
    assert "\x1b" not in shell("ls").out


def test_an_unexpected_error_is_one_line(call, monkeypatch):
    from stretto.model_files.store import Store

    def broken(self):
        raise RuntimeError("boom")

    monkeypatch.setattr(Store, "ls", broken)
    ended = call("ls")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "error: unexpected RuntimeError: boom",
        "hint: this is a bug in Stretto; --debug shows the traceback",
    ]
    assert "Traceback" in call("ls", "--debug").err
