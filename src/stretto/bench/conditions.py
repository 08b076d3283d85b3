"""Under which conditions a figure was made: without them it is worth nothing. No path of this machine."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import stretto

_CPU_FILE = Path("/proc/cpuinfo")


def conditions() -> dict[str, str | int]:
    """Date, machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "load_before": _load(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "stretto": stretto.__version__,
        "llama_cpp_python": _version_of("llama-cpp-python"),
    }


def _cpu() -> str:
    try:
        lines = _CPU_FILE.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _load() -> str:
    """The machine's load average: whether it was as quiet as it should be."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
