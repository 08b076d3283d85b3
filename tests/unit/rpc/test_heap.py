"""Large blocks go back to the system, also with small ones above them. Shown in a child process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
from stretto.rpc.heap import return_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "on":
    assert return_large_blocks()
bytes(20_000_000)  # makes glibc keep blocks of this size from now on
before, kept = resident(), []
blocks = [b"x" * 4_000_000 for _ in range(20)]
kept.append(b"y" * 100_000)  # above them in the heap
del blocks
print((resident() - before) // 1_000_000)
"""


def left_mb(switch: str) -> int:
    command = [sys.executable, "-c", SCRIPT, switch]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_freed_blocks_are_given_back() -> None:
    assert left_mb("on") < 10


def test_they_are_not_by_default() -> None:
    assert left_mb("off") > 40
