"""Cells of a unified pool, counted by shared runs.

A run is a stretch of cells that one or more sequences hold. Sharing a prefix adds a holder, it takes no cell.
Only counts: llama.cpp decides which physical cells are used.
"""

from __future__ import annotations

from collections.abc import Iterable


class CellRun:
    __slots__ = ("holders", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.holders = 1


class CellPool:
    """How many cells each sequence holds, and how many are free in all."""

    def __init__(self, total: int, sequences: int) -> None:
        self.total = total
        self.free = total
        self._runs: list[list[CellRun]] = [[] for _ in range(sequences)]

    def held(self, sequence: int) -> int:
        return sum(run.length for run in self._runs[sequence])

    def gain(self, sequence: int) -> int:
        """Cells that become free when the sequence releases all of its."""
        return sum(run.length for run in self._runs[sequence] if run.holders == 1)

    def used_by(self, sequences: Iterable[int]) -> int:
        """Cells that stay in use when only these sequences go on."""
        runs = {id(run): run.length for sequence in sequences for run in self._runs[sequence]}
        return sum(runs.values())

    def grow(self, sequence: int, count: int) -> bool:
        if count > self.free:
            return False
        if count > 0:
            runs = self._runs[sequence]
            if runs and runs[-1].holders == 1:
                runs[-1].length += count
            else:
                runs.append(CellRun(count))
            self.free -= count
        return True

    def trim(self, sequence: int, length: int) -> None:
        """Keep the first `length` cells."""
        self._split(sequence, length)
        runs, surplus = self._runs[sequence], self.held(sequence) - length
        while surplus > 0:
            run = runs.pop()
            surplus -= run.length
            run.holders -= 1
            if run.holders == 0:
                self.free += run.length

    def share(self, source: int, target: int, length: int) -> None:
        """The empty target holds the first `length` cells of the source, too."""
        assert not self._runs[target], "COPY into a sequence that still holds cells"
        self._split(source, length)
        left = length
        for run in self._runs[source]:
            if left <= 0:
                break
            run.holders += 1
            self._runs[target].append(run)
            left -= run.length

    def _split(self, sequence: int, length: int) -> None:
        """Make `length` a border between runs, for every holder."""
        position = 0
        for run in self._runs[sequence]:
            if position < length < position + run.length:
                self._divide(run, length - position)
                return
            position += run.length

    def _divide(self, run: CellRun, head: int) -> None:
        tail = CellRun(run.length - head)
        tail.holders = run.holders
        run.length = head
        for runs in self._runs:
            if run in runs:
                runs.insert(runs.index(run) + 1, tail)

    def check(self) -> None:
        seen: dict[int, CellRun] = {}
        holders: dict[int, int] = {}
        for runs in self._runs:
            for run in runs:
                seen[id(run)] = run
                holders[id(run)] = holders.get(id(run), 0) + 1
        used = sum(run.length for run in seen.values())
        assert used + self.free == self.total, f"cells: {used} used + {self.free} free != {self.total}"
        for key, run in seen.items():
            assert run.holders == holders[key], "a run counts holders it does not have"
