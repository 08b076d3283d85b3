"""This machine's memory, cores and GPUs. Read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ASK_TIMEOUT_S = 5.0
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; `available` can be allocated without swapping."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    total: int
    available: int


def memory() -> Memory:
    """Memory of the machine, or of the container if that is less."""
    total, available = _kernel_memory()
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, available)


def _kernel_memory() -> tuple[int, int]:
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for row in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = row.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    if "MemTotal" in found:
        return found["MemTotal"], found.get("MemAvailable", found["MemTotal"])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # macOS: free memory is unknown
    return total, total


def cores() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[Gpu]:
    """NVIDIA GPUs, as listed by nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True
        ).stdout
        rows = [row.rsplit(",", 2) for row in said.splitlines() if row.count(",") >= 2]
        return [Gpu(name.strip(), int(total) << 20, int(free) << 20) for name, total, free in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
