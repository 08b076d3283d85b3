"""Processors that this process may use: its affinity mask and the CPU quota of its cgroups.

More threads than processors slow every pass down, and threads beyond a quota are throttled together: with
half a processor, two threads compute for a quarter of each period and stand still for the rest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cores() -> int:
    """At least 1. A quota of 1.5 processors counts as two."""
    quota = quota_cores()
    allowed = _affinity()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota - 1e-9)))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def quota_cores(*, membership: Path = MEMBERSHIP, root: Path = CGROUPS) -> float | None:
    """The smallest quota of the cgroups above this process; None without one. Both cgroup versions."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    found: list[float] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += [quota for folder in _up(root, path) if (quota := _quota_v2(folder)) is not None]
        elif "cpu" in controllers.split(","):
            for base in (root / "cpu", root / "cpu,cpuacct"):
                found += [quota for folder in _up(base, path) if (quota := _quota_v1(folder)) is not None]
    return min(found, default=None)


def _up(root: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container the path may be the host's: the root is left."""
    part = PurePosixPath(path.lstrip("/"))
    if ".." not in part.parts:
        for one in (part, *part.parents):
            yield root / one


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    if not quota.isdigit() or not period.isdigit() or not int(period) or not int(quota):
        return None  # "max" and -1: no limit
    return int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
