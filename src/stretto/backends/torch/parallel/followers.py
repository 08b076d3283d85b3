"""Rank 0's end of the followers: starts them, sends them the passes, and notices when one ends.

A thread for each follower starts the process and reads its pipe until the end; the kernel kills a follower
when that thread ends, so none outlives this process. A follower that ends unasked takes the model with it:
`on_lost` is told once why, and from then on every call raises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from stretto.backends.torch.parallel import messages as m
from stretto.backends.torch.parallel.group import RankGroup
from stretto.backends.torch.staging import Ints
from stretto.core.tick import TableUpdate
from stretto.errors import TorchError, by_code, one_line

log = logging.getLogger("stretto.runtime")

CLOSE_S = 5.0  # for a follower to end by itself
NOTICE_S = 2.0  # for the end of a follower to be noticed after a pass failed
MODULE = "stretto.backends.torch.follower"
OnLost = Callable[[str], None]


class _Process:
    """One follower, from its start to its end."""

    def __init__(self, rank: int, on_end: Callable[[_Process], None]) -> None:
        self.rank = rank
        self.replies: queue.SimpleQueue[m.Reply | None] = queue.SimpleQueue()  # None: it has ended
        self.ended = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.status: int | None = None
        self._on_end = on_end
        self._started = threading.Event()
        threading.Thread(target=self._live, name=f"stretto-rank-{rank}", daemon=True).start()
        self._started.wait()

    def _live(self) -> None:
        try:
            self._run()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("rank %d: %s", self.rank, error)
        finally:
            self.ended.set()
            self._started.set()
            self.replies.put(None)
            self._on_end(self)

    def _run(self) -> None:
        command = [sys.executable, "-P", "-m", MODULE, "--parent", str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._started.set()
        assert self.process.stdout is not None
        try:
            while (reply := m.read_reply(self.process.stdout)) is not None:
                self.replies.put(reply)
        finally:
            self.status = self.process.wait()
            self.process.stdout.close()

    def send(self, order: m.Order) -> None:
        """What a follower that has ended does not get is not missed: its end is reported by its thread."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                m.write(self.process.stdin, order)

    def close(self) -> None:
        if self.process is None:
            return
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if not self.ended.wait(CLOSE_S):
            self.process.kill()
            self.ended.wait(CLOSE_S)


class Followers:
    """The other ranks. Used by the thread that owns the backend; `pids` by any."""

    def __init__(self, group: RankGroup, *, on_lost: OnLost | None = None) -> None:
        self.group = group
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._lost = ""
        self._closing = False
        self._tables: list[tuple[int, int, tuple[int, ...]]] = []
        self._copies: list[tuple[int, int, int]] = []
        self._meeting = Path(tempfile.mkdtemp(prefix="stretto-ranks-"))  # mode 0700
        self._all = [_Process(rank, self._ended) for rank in range(1, group.count)]

    @property
    def pids(self) -> list[int]:
        return [each.process.pid for each in self._all if each.process is not None]

    @property
    def meeting(self) -> Path:
        return self._meeting / "ranks"

    # --- loading ---------------------------------------------------------------------------------

    def load(self, setups: Sequence[m.Setup]) -> None:
        """Each follower loads its part, while this process loads its own."""
        for follower, setup in zip(self._all, setups, strict=True):
            follower.send(setup)

    def begin(self, pages: int) -> int:
        """Waits until all have loaded, then joins them. Returns the pages that fit in every rank's memory."""
        for follower in self._all:
            loaded = self._reply(follower)
            assert isinstance(loaded, m.Loaded)
            pages = min(pages, loaded.pages)
        for follower in self._all:
            follower.send(m.Begin(pages))
        self.group.join(self.meeting)
        for follower in self._all:
            self._reply(follower)
        if self.group.device.type != "cuda":  # NCCL looks at it again
            shutil.rmtree(self._meeting, ignore_errors=True)
        return pages

    def _reply(self, follower: _Process) -> m.Reply:
        reply = follower.replies.get()
        if reply is None:
            raise TorchError(self._described(follower), hint="its output says why")
        if isinstance(reply, m.Failed):
            raise by_code(reply.code)(f"rank {follower.rank}: {reply.message}", hint=reply.hint)
        return reply

    # --- passes ----------------------------------------------------------------------------------

    def tables(self, updates: Sequence[TableUpdate]) -> None:
        """Sent with the next pass."""
        self._tables += updates

    def copy(self, source: int, target: int, length: int) -> None:
        """Sent with the next pass."""
        self._copies.append((source, target, length))

    def send(self, slots: Ints, starts: Ints, counts: Ints | None = None) -> None:
        """A pass that all ranks run; without `counts` one row for each slot."""
        with self._lock:
            if self._lost:
                raise TorchError(self._lost)
        rows = [] if counts is None else counts.tolist()
        order = m.Pass(slots.tolist(), starts.tolist(), rows, self._tables, self._copies)
        for follower in self._all:
            follower.send(order)
        self._tables, self._copies = [], []

    # --- ends ------------------------------------------------------------------------------------

    def failed(self, error: Exception) -> TorchError:
        """A pass failed in this process: the ranks are out of step, and the model ends.

        Mostly because another one has died. Then that is the reason, whichever thread sees it first.
        """
        dead = [each for each in self._all if each.ended.wait(NOTICE_S / len(self._all))]
        here = f"a pass failed on rank 0 of {self.group.count}: {one_line(str(error))}"
        self._lose(self._described(dead[0]) if dead else here)
        return TorchError(self._lost)

    def _ended(self, follower: _Process) -> None:
        self._lose(self._described(follower))

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._closing or self._lost:
                return
            self._lost = reason
            if self._on_lost is not None:
                self._on_lost(reason)  # may end the process: until then other threads wait here
            else:
                log.error("%s; the model ends", reason)

    def _described(self, follower: _Process) -> str:
        status = follower.status
        how = "did not start" if status is None else f"exited with status {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        return f"rank {follower.rank} of {self.group.count} {how}"

    def close(self) -> None:
        with self._lock:
            self._closing = True
        for follower in self._all:
            follower.close()
        self.group.leave()
        shutil.rmtree(self._meeting, ignore_errors=True)
