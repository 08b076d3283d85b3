"""Descriptors are asked of a child process, whose limits can be changed at will."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource, sys
soft, hard, wanted = (int(a) for a in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from stretto.server.http.descriptors import connections_possible
print(connections_possible(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def possible(soft: int, hard: int, wanted: int) -> list[int]:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.splitlines()[-1].split()]


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    assert possible(1024, 4096, 2000) == [2000, 2288]


def test_fewer_connections_where_there_are_fewer_descriptors() -> None:
    assert possible(1024, 1024, 4096) == [736, 1024]


def test_enough_is_left_alone() -> None:
    assert possible(1024, 4096, 100) == [100, 1024]
