"""A progress bar for many prompts, on stderr; hidden if stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

REFRESH_S = 0.1


class ProgressBar:
    def __init__(self, total: int, *, enabled: bool) -> None:
        self._total = total
        self._enabled = enabled
        self._done = 0
        self._tokens = 0
        self._started_s = time.monotonic()
        self._shown_s = 0.0

    def tokens(self, count: int) -> None:
        self._tokens += count
        self._show()

    def done(self) -> None:
        self._done += 1
        self._show()

    def _show(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if not self._enabled or (not last and now - self._shown_s < REFRESH_S):
            return
        self._shown_s = now
        rate = self._tokens / max(now - self._started_s, 1e-6)
        filled = 30 * self._done // max(self._total, 1)
        bar = "█" * filled + "░" * (30 - filled)
        line = f"\r{bar} {self._done}/{self._total}  {self._tokens} tokens  {rate:.0f} tok/s "
        print(line, end="\n" if last else "", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(last=True)
