"""Reads `pip install --verbose` on stdin and prints how far it is; a file gets the whole output.

On a terminal one line is rewritten; elsewhere a line is printed every few seconds. When pip fails, the
compiler's errors and the end of the log are printed. Standard library only: it runs before anything is
installed.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

COMPILED = re.compile(r"^\s*\[\s*(\d+)/(\d+)\]")
STAGES = (
    (re.compile(r"^\s*Collecting ([\w.\-]+)"), "resolving {}"),
    (re.compile(r"^\s*Downloading ([\w.\-]+)"), "downloading {}"),
    (re.compile(r"^\s*Building wheel for ([\w.\-]+)"), "building {}"),
    (re.compile(r"^\s*Installing collected packages(:)"), "installing"),
)
FAILED = ("ERROR:", "error: subprocess-exited-with-error")
COMPILER_ERROR = re.compile(r"\b(fatal )?error: |CMake Error")
LINE_EVERY_S = 10.0  # where the output is not a terminal
TAIL_LINES, ERROR_LINES = 20, 10


class Progress:
    """Prints states of the installation: each on a terminal, compile steps every `LINE_EVERY_S` elsewhere."""

    def __init__(self, out: TextIO, started_s: float) -> None:
        self._out = out
        self._started_s = started_s
        self._shown_s = started_s
        self._terminal = out.isatty()

    def line(self, text: str, now_s: float) -> None:
        step = COMPILED.match(text)
        if step:
            done, total = int(step[1]), int(step[2])
            self._show(f"compiling llama.cpp: {done} of {total} steps ({done * 100 // total} %)", now_s)
        elif self._terminal:
            stage = next(((found, words) for rule, words in STAGES if (found := rule.match(text))), None)
            if stage:
                self._show(stage[1].format(stage[0][1]), now_s)

    def end(self, now_s: float) -> None:
        clear = f"\r{'':<78}\r" if self._terminal else ""
        self._out.write(f"{clear}      done in {now_s - self._started_s:.0f} s\n")

    def _show(self, state: str, now_s: float) -> None:
        if not self._terminal and now_s - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = now_s
        text = f"      {state}, {now_s - self._started_s:.0f} s"
        self._out.write(f"\r{text[:78]:<78}" if self._terminal else f"{text}\n")
        self._out.flush()


def follow(lines: Iterable[str], log_path: Path, out: TextIO, err: TextIO) -> int:
    """1 where pip said that it failed. pip's own status reaches make by `pipefail`."""
    progress = Progress(out, time.monotonic())
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    errors: list[str] = []
    failed = False
    with log_path.open("w", encoding="utf-8") as log:
        for text in lines:
            log.write(text)
            tail.append(text)
            failed = failed or text.lstrip().startswith(FAILED)
            if COMPILER_ERROR.search(text) and len(errors) < ERROR_LINES:
                errors.append(text)
            progress.line(text, time.monotonic())
    if failed:
        err.writelines(["\n", *errors, "…\n", *tail, f"hint: the whole output is in {log_path}\n"])
        return 1
    progress.end(time.monotonic())
    return 0


if __name__ == "__main__":
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(follow(sys.stdin, Path(sys.argv[1]), sys.stdout, sys.stderr))
