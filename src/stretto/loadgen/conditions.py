"""The conditions of a measurement: date, machine, versions. Contains no local paths."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import stretto

_CPU_FILE = Path("/proc/cpuinfo")
_ARM_PARTS = {  # the kernel reports ARM's processors by number only
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
}


def conditions() -> dict[str, str | int]:
    """Date, machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "load_before": _load(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "stretto": stretto.__version__,
        "llama_cpp_python": _version_of("llama-cpp-python"),
    }


def cpu_name() -> str:
    try:
        rows = [row.partition(":") for row in _CPU_FILE.read_text(encoding="utf-8").splitlines()]
    except OSError:
        rows = []
    found = {name.strip(): rest.strip() for name, _, rest in rows}
    by_part = _ARM_PARTS.get(found.get("CPU part", ""), "") if found.get("CPU implementer") == "0x41" else ""
    return found.get("model name") or by_part or platform.processor() or platform.machine()


def _load() -> str:
    """The machine's load average, to show whether it was idle."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
