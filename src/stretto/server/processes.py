"""Several API processes behind one listening socket, and the parent that keeps them running.

The parent binds the socket and forks: one supervisor of the worker, and N API processes that all accept on
the inherited socket. It runs no event loop and no thread, so it can fork again at any time: a process that is
killed loses only its own connections and is replaced. SIGTERM or SIGINT drains the API processes, then stops
the supervisor (and with it the worker); a second signal is passed on and cancels running requests.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stretto.telemetry.logs import logger

SUPERVISOR = -1
STOPS = (signal.SIGTERM, signal.SIGINT)
PR_SET_PDEATHSIG = 1
SOON_S = 1.0  # a process that lives shorter is replaced only after this long
_log = logger("stretto.server")


@dataclass(slots=True)
class ProcessGroup:
    """`run` returns in every child with the number it plays, and in the parent with None, at the end.

    `on_death` is called with the number of an API process that has died, before it is replaced.
    """

    count: int
    on_death: Callable[[int], None] = lambda _number: None
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="stretto-api-")))
    exit_code: int = 0
    _running: dict[int, int] = field(default_factory=dict)  # pid → number
    _started_s: dict[int, float] = field(default_factory=dict)  # by number
    _stopping: bool = False

    @property
    def link(self) -> Path:
        """Where the API processes find the worker's socket."""
        return self.directory / "worker"

    def run(self) -> int | None:
        watched = {*STOPS, signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        numbers: list[int] = [SUPERVISOR, *range(self.count)]
        for number in numbers:
            if self._fork(number):
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return number
        while self._running:
            arrived = signal.sigwait(watched)
            if arrived in STOPS:
                self._stop()
            elif (dead := self._reap()) is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return dead
        shutil.rmtree(self.directory, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None

    def _fork(self, number: int) -> bool:
        """True in the child."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._running[pid] = number
            self._started_s[number] = time.monotonic()
            return False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes a SIGTERM on
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
        return True

    def _reap(self) -> int | None:
        """Replace the processes that have died. Returns a number in the child that takes it over."""
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return None
            number = self._running.pop(pid, None)
            if number is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if number != SUPERVISOR:
                self.on_death(number)
            elif code > 0 and not self._stopping:  # the model does not load: the error is already printed
                self.exit_code = code
                self._stop()
            if not self._stopping:
                _log.error("a process died and is replaced", process=_name(number), status=code)
                time.sleep(max(0.0, SOON_S - (time.monotonic() - self._started_s[number])))
                if self._fork(number):
                    return number
            elif not any(one != SUPERVISOR for one in self._running.values()):
                self._signal(SUPERVISOR)
        return None

    def _stop(self) -> None:
        """Drain the API processes; the supervisor is stopped when the last of them has ended."""
        self._stopping = True
        if not self._signal(*range(self.count)):
            self._signal(SUPERVISOR)

    def _signal(self, *numbers: int) -> int:
        found = [pid for pid, number in self._running.items() if number in numbers]
        for pid in found:
            os.kill(pid, signal.SIGTERM)
        return len(found)


def _name(number: int) -> str:
    return "worker supervisor" if number == SUPERVISOR else f"API process {number}"
