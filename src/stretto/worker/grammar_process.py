"""The worker's end of the grammar trial process (`worker.grammar_server`).

Started with the first grammar, and again after it has died. A trial is a future: cancelling it kills the
trial. Thread-safe. Fairness is handled by `text.lanes`, caching by `worker.grammars`.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO

import msgspec

from stretto.errors import CapacityError, by_code
from stretto.model_files.forks import read_frame, write_frame
from stretto.worker.grammar_server import Ask, Verdict, Words


class GrammarProcess:
    """`words` is called when the process starts, not before: it takes tenths of a second."""

    def __init__(self, words: Callable[[], Words]) -> None:
        self._words = words
        self._lock = threading.Lock()
        self._life: _GrammarProcess | None = None
        self._numbers = itertools.count(1)
        self._closed = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        life = self._life
        return None if life is None else life.process.pid

    def submit(self, grammar: str) -> Future[Verdict]:
        """A verdict, or the typed error of a rejected grammar."""
        future: Future[Verdict] = Future()
        try:
            for _ in range(2):  # a process may have died since the last grammar
                if self._living().ask(next(self._numbers), grammar, future):
                    return future
            raise BrokenPipeError("it ends at once")
        except OSError as error:
            future.set_exception(CapacityError(f"the grammar compiler is not available: {error}"))
            return future

    def close(self) -> None:
        with self._lock:
            self._closed = True
            life, self._life = self._life, None
        if life is not None:
            life.end()

    def _living(self) -> _GrammarProcess:
        with self._lock:
            if self._closed:
                raise BrokenPipeError("the model is closed")
            if self._life is None or self._life.over:
                self._life = _GrammarProcess(self._words())
                self.starts += 1
            return self._life


class _GrammarProcess:
    """One process, from its start to its end."""

    def __init__(self, words: Words) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stretto.worker.grammar_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.over = False
        self._lock = threading.Lock()
        self._open: dict[int, Future[Verdict]] = {}
        self._write(msgspec.msgpack.encode(words))
        threading.Thread(target=self._read, name="stretto-grammar-verdicts", daemon=True).start()

    def ask(self, number: int, grammar: str, future: Future[Verdict]) -> bool:
        """False if the process has ended and has not got the grammar; then it is over."""
        with self._lock:
            try:
                if not self.over:
                    self._write(msgspec.msgpack.encode(Ask(id=number, grammar=grammar)))
                    self._open[number] = future
            except (OSError, ValueError):  # ValueError: its pipe was closed here
                self.over = True
            if self.over:
                return False
        future.add_done_callback(lambda done: self._cancel(number) if done.cancelled() else None)
        return True

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe(self.process.stdin).close()

    def _cancel(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._open.pop(number, None) is not None:
                self._write(msgspec.msgpack.encode(Ask(id=number)))

    def _write(self, body: bytes) -> None:
        write_frame(self._pipe(self.process.stdin).fileno(), body)

    def _read(self) -> None:
        """Read verdicts until the process ends. Trials pending then fail with a retryable error."""
        output = self._pipe(self.process.stdout)
        try:
            while (frame := read_frame(output.fileno())) is not None:
                self._heard(msgspec.msgpack.decode(frame, type=Verdict))
        except (OSError, ValueError, msgspec.MsgspecError):
            pass
        with self._lock:
            self.over = True
            left, self._open = list(self._open.values()), {}
        self.end()
        output.close()
        self.process.kill()
        self.process.wait()
        for future in left:
            _settle(future, CapacityError("the grammar compiler process died"))

    def _heard(self, verdict: Verdict) -> None:
        with self._lock:
            future = self._open.pop(verdict.id, None)
        if future is not None:
            _settle(future, by_code(verdict.code)(verdict.message) if verdict.code else verdict)

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def _settle(future: Future[Verdict], outcome: Verdict | Exception) -> None:
    """Resolve the future, unless its caller has just cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Verdict):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
