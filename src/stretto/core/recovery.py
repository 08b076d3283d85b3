"""After a failed pass: find the request that broke it, with ordinary smaller ticks.

The requests of the failed tick are split in halves; each half runs alone until it passes or is a single
request that fails again. Only that request fails. A failure that does not recur fails no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Recovery:
    """Groups of request ids on probation, in order. Empty unless a pass has failed."""

    def __init__(self) -> None:
        self._groups: list[list[str]] = []
        self._failed_before: dict[str, None] = {}
        self.rows_max = 0  # 0: no cap; else the most rows of one prompt, after memory ran out
        self.tight = False  # the last pass found no room: no admissions before one has run

    @property
    def active(self) -> bool:
        return bool(self._groups)

    def group(self, running: Sequence[str]) -> list[str]:
        """The running requests that may have rows now."""
        while self._groups:
            present = [request_id for request_id in self._groups[0] if request_id in running]
            if present:
                return present
            self._groups.pop(0)
        return list(running)

    def failed(self, requests: Sequence[str], *, alone: bool) -> str | None:
        """These ran in a failed pass, `alone` or with others that have left. Returns the one to blame."""
        if self._groups:
            self._groups.pop(0)
        if len(requests) == 1:
            guilty = requests[0]
            if alone and guilty in self._failed_before:
                del self._failed_before[guilty]
                return guilty
            self._groups.insert(0, [guilty])
        else:
            half = len(requests) // 2
            self._groups[:0] = [list(requests[:half]), list(requests[half:])]
        self._failed_before.update(dict.fromkeys(requests))
        return None

    def passed(self, requests: Iterable[str]) -> None:
        """`requests` are read only after a failure: nearly every tick passes."""
        self.rows_max, self.tight = 0, False
        if self._groups:
            self._groups.pop(0)
        if self._failed_before:
            for request_id in requests:
                self._failed_before.pop(request_id, None)

    def skip(self) -> None:
        """The first group cannot run on its own (memory is short): let it run with the others."""
        self._groups.pop(0)

    def forget(self, request_id: str) -> None:
        self._failed_before.pop(request_id, None)
