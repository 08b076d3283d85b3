"""What the tests of the command line share: runners in this process and in their own, and tiny models."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stretto.cli import main
from stretto.testing import tiny_models

TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def environment(home: Path) -> dict[str, str]:
    """As few variables as a process needs, so that nothing of the developer's own leaks in."""
    kept = {
        name: value for name, value in os.environ.items() if name in {"PATH", "TMPDIR", "LD_LIBRARY_PATH"}
    }
    return {**kept, "HOME": str(home), "STRETTO_CACHE_DIR": str(home / "cache"), "NO_COLOR": "1"}


class Shell:
    """Runs `python -m stretto …` in an empty home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "stretto", *map(str, arguments)]

    def __call__(self, *arguments: str | Path, stdin: bytes = b"") -> Ended:
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            env=environment(self.home),
            cwd=self.home,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(self.home),
            cwd=self.home,
            preexec_fn=hear_interrupts,  # noqa: PLW1509 - one call that is safe there
        )


def hear_interrupts() -> None:
    """A job in the background of a shell is born deaf to Ctrl-C, and so are its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs a command line in this process; quicker, and as blind to the developer's settings."""
    for name in [name for name in os.environ if name.startswith(("STRETTO_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def dense() -> Path:
    return tiny_models.make("dense")


@pytest.fixture(scope="session")
def hybrid() -> Path:
    return tiny_models.make("hybrid-granite")


def assert_one_line_error(ended: Ended, *words: str) -> None:
    """`error: …` and `hint: …` on stderr, nothing on stdout, exit code 2, no traceback."""
    lines = [line for line in ended.err.splitlines() if not line.startswith("note: ")]
    assert ended.code == 2, ended
    assert ended.out == ""
    assert len(lines) == 2, lines
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert len(lines[1]) > len("hint: ")
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err, (word, ended.err)
