"""Processors by affinity and quota, from cgroup files as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.backends.llamacpp.native.cpu_limits import cores, quota_cores


def group(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/host/path\n", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/../../x\n", {"cpu.max": "100000 100000"}, None),
        (
            "3:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "1"},
            None,
        ),
        ("1:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "25000", "cpu/x/cpu.cfs_period_us": "100000"}, 0.25),
        ("0::/\n", {"cpu.max": "garbage"}, None),
        ("0::/\n", {"cpu.max": "1 0"}, None),
        ("", {}, None),
    ],
)
def test_quota(tmp_path: Path, membership: str, files: dict[str, str], expected: float | None) -> None:
    group(tmp_path / "fs", files)
    (tmp_path / "cgroup").write_text(membership)
    assert quota_cores(membership=tmp_path / "cgroup", root=tmp_path / "fs") == expected


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert quota_cores(membership=tmp_path / "none", root=tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks on this system")
def test_an_affinity_of_one_core_is_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from stretto.backends.llamacpp.native.cpu_limits import cores; print(cores())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "1"
    assert cores() >= 1
