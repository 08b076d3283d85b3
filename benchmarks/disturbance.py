"""How much CPU time other processes took during a measurement, as Linux reports it.

Own time is that of this process and its descendants, ended ones included: servers, clients, busy neighbours
that a claim starts. The rest of what the processors did, and what the host took (steal), disturbs.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

DISTURBED = 0.05  # of all processors' time: more than this, used by others, and a measurement is repeated
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Shares of the time of all processors."""

    others: float
    steal: float

    @property
    def disturbed(self) -> bool:
        return self.others + self.steal > DISTURBED


class CpuWatch:
    """Measures from when it is made. None where the system does not report it."""

    def __init__(self, proc: Path = Path("/proc"), pid: int = 0) -> None:
        self._proc = proc
        self._pid = pid or os.getpid()
        self._begun_s = time.monotonic()
        self._before = self._read()

    def seen(self, wall_s: float = 0.0) -> Disturbance | None:
        """Since the start; `wall_s` for tests."""
        now = self._read()
        if now is None or self._before is None:
            return None
        wall_s = wall_s or time.monotonic() - self._begun_s
        busy, own, steal, cores = (after - before for after, before in zip(now, self._before, strict=True))
        total_s = max(wall_s, 1e-3) * max(1, now[3])
        assert cores == 0
        return Disturbance(others=max(0.0, busy - own) / total_s, steal=max(0.0, steal) / total_s)

    def _read(self) -> tuple[float, float, float, int] | None:
        try:
            lines = (self._proc / "stat").read_text(encoding="ascii").splitlines()
            fields = [int(part) for part in lines[0].split()[1:]]
        except (OSError, ValueError, IndexError):
            return None
        cores = sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines)
        busy = sum(fields[:3]) * _TICK_S  # user, nice, system; interrupts belong to no process
        steal = fields[7] * _TICK_S if len(fields) > 7 else 0.0
        return busy, tree_cpu_s(self._pid, self._proc), steal, cores


def tree_cpu_s(pid: int, proc: Path = Path("/proc")) -> float:
    """CPU seconds of a process and its descendants, of those that ended as their parents waited for them."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            rest = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(folder.name)] = int(rest[1])
            spent[int(folder.name)] = sum(
                map(int, rest[11:15])
            )  # own and awaited children's, user and system
        except (OSError, ValueError, IndexError):  # it ended
            continue
    total, left = 0, [pid]
    while left:
        one = left.pop()
        total += spent.get(one, 0)
        left += [child for child, parent in parents.items() if parent == one]
    return total * _TICK_S
