"""What a machine does to a server: busy processes beside it, fewer processors, a CPU quota.

Everything is started and undone here, also when a measurement fails.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
BUSY = (sys.executable, "-c", "while True: pass")


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that compute without end."""
    running = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


@contextlib.contextmanager
def quota(cores: float, root: Path = CGROUPS) -> Iterator[list[str] | None]:
    """What to put before a command so that it gets so much CPU time; None where cgroups cannot be made."""
    group = (root / "cpu" if _is_first_version(root) else root) / f"stretto-bench-{os.getpid()}"
    try:
        group.mkdir()
        _limit(group, int(cores * PERIOD_US), first_version=_is_first_version(root))
        before: list[str] | None = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    except OSError as error:
        print(f"  no CPU quota here: {error.strerror}", file=sys.stderr)
        before = None
    try:
        yield before
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def _is_first_version(root: Path) -> bool:
    return (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "cpu.shares").exists()


def _limit(group: Path, quota_us: int, *, first_version: bool) -> None:
    if first_version:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")


def pinned(cores: int) -> list[str]:
    """What to put before a command so that it runs on the first so many processors that we may use."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    return ["taskset", "-c", ",".join(map(str, allowed))]
