"""Plants a defect in a copy of the source and runs a check that must catch it.

A defect is a piece of text in one file and its replacement; the source itself has no switches for this. The
text must occur exactly once, so a defect that no longer applies is an error, not a pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    file: str  # relative to src/stretto
    before: str
    after: str
    arguments: tuple[str, ...] = ()  # for the command that should catch it


@dataclass(frozen=True, slots=True)
class Caught:
    defect: str
    caught: bool
    by: str  # the output line that shows it


def plant(defect: Defect, directory: Path) -> Path:
    """Copies the source with the defect in it. Returns the folder for PYTHONPATH."""
    target = directory / "src"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    path = target / "stretto" / defect.file
    text = path.read_text(encoding="utf-8")
    if text.count(defect.before) != 1:
        raise ValueError(f"{defect.name}: its text occurs {text.count(defect.before)} times in {defect.file}")
    path.write_text(text.replace(defect.before, defect.after), encoding="utf-8")
    return target


def try_defect(
    defect: Defect, command: list[str], *, signs: tuple[str, ...], timeout_s: float = 600.0
) -> Caught:
    """Run a command against the planted copy. Caught: it fails and prints one of the signs."""
    with tempfile.TemporaryDirectory(prefix="stretto-defect-") as directory:
        source = plant(defect, Path(directory))
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*command, *defect.arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        lines = (done.stdout + done.stderr).splitlines()
        said = [line.strip() for line in lines if any(sign in line for sign in signs)]
        return Caught(
            defect.name, done.returncode != 0 and bool(said), said[0] if said else " / ".join(lines[-3:])
        )
