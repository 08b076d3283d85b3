"""The grammar trial process: `python -m stretto.worker.grammar_server`, over stdin and stdout.

It builds llguidance's representation of one vocabulary, then forks a child for each grammar, with limits on
stack, memory, CPU time and wall time. A grammar that overflows the stack, exhausts memory or never terminates
therefore only kills its own child. A cancelled trial is killed immediately. End of file on stdin ends the
process.

Frames: four bytes of length, then msgpack. In: the vocabulary first, then trials and cancellations. Out:
verdicts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import selectors
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stretto.errors import GrammarTooComplexError, StrettoError
from stretto.model_files.child import limit_self
from stretto.model_files.forks import answer_and_exit, held_bytes, read_frame, write_frame

if TYPE_CHECKING:
    from stretto.text.grammar_factory import GrammarFactory

STACK_BYTES = 4 << 20  # smaller than the stack of any worker thread
MEMORY_BYTES = 384 << 20  # in addition to what this process uses
CPU_S = 2
WALL_S = 4.0


class Words(msgspec.Struct, frozen=True):
    """The first frame: the vocabulary."""

    tokens: list[bytes]
    eos: list[int]
    control: list[int]


class Ask(msgspec.Struct, frozen=True):
    """Try a grammar; without a grammar, cancel that trial."""

    id: int
    grammar: str | None = None


class Verdict(msgspec.Struct, frozen=True):
    """`code` is empty for an accepted grammar; `bytes`: approximate memory used."""

    id: int
    code: str = ""
    message: str = ""
    compile_s: float = 0.0
    bytes: int = 0


@dataclass(slots=True)
class _Trial:
    id: int
    pid: int
    output: int
    kill_at_s: float
    said: bytearray
    killed: bool = False


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = read_frame(0)
    if first is None:
        return 0
    words = msgspec.msgpack.decode(first, type=Words)
    from stretto.text.grammar import build_ll_tokenizer
    from stretto.text.grammar_factory import GrammarFactory

    factory = GrammarFactory(
        build_ll_tokenizer(words.tokens, words.eos, control=words.control), eos=words.eos
    )
    del words, first
    gc.collect()
    gc.freeze()  # forked children share these pages until they are written
    _Server(factory).run()
    return 0


class _Server:
    def __init__(self, factory: GrammarFactory) -> None:
        self._factory = factory
        self._trials: dict[int, _Trial] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, None)

    def run(self) -> None:
        while True:
            waits = [t.kill_at_s - time.monotonic() for t in self._trials.values() if not t.killed]
            for key, _ in self._selector.select(max(0.0, min(waits)) if waits else None):
                if key.data is None:
                    if not self._asked():
                        self._end_all()
                        return
                else:
                    self._heard(key.data)
            now_s = time.monotonic()
            for trial in self._trials.values():
                if not trial.killed and now_s >= trial.kill_at_s:
                    self._kill(trial)

    def _asked(self) -> bool:
        frame = read_frame(0)
        if frame is None:
            return False
        ask = msgspec.msgpack.decode(frame, type=Ask)
        if ask.grammar is not None:
            self._fork(ask.id, ask.grammar)
        elif (trial := self._trials.get(ask.id)) is not None:
            self._kill(trial)
        return True

    def _fork(self, trial_id: int, grammar: str) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            answer_and_exit(lambda: _verdict(trial_id, self._factory, grammar), theirs, _limit)
        os.close(theirs)
        trial = _Trial(trial_id, pid, ours, time.monotonic() + WALL_S, bytearray())
        self._trials[trial_id] = trial
        self._selector.register(ours, selectors.EVENT_READ, trial)

    def _heard(self, trial: _Trial) -> None:
        data = os.read(trial.output, 1 << 16)
        trial.said += data
        if data:
            return
        self._selector.unregister(trial.output)
        os.close(trial.output)
        _, status = os.waitpid(trial.pid, 0)
        del self._trials[trial.id]
        write_frame(1, bytes(trial.said) or msgspec.msgpack.encode(_died(trial, status)))

    def _kill(self, trial: _Trial) -> None:
        trial.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(trial.pid, signal.SIGKILL)

    def _end_all(self) -> None:
        for trial in self._trials.values():
            self._kill(trial)
            os.waitpid(trial.pid, 0)


def _limit() -> None:
    limit_self(memory_bytes=held_bytes("VmSize") + MEMORY_BYTES, cpu_s=CPU_S)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, hard))


def _verdict(trial_id: int, factory: GrammarFactory, grammar: str) -> bytes:
    return msgspec.msgpack.encode(_tried(trial_id, factory, grammar))


def _tried(trial_id: int, factory: GrammarFactory, grammar: str) -> Verdict:
    from stretto.text.grammar_trial import trial

    before = held_bytes("VmRSS")
    try:
        compile_s = trial(factory, grammar)
    except StrettoError as error:
        return Verdict(id=trial_id, code=error.code, message=error.message)
    except MemoryError:
        return Verdict(id=trial_id, code=GrammarTooComplexError.code, message=_MEMORY)
    return Verdict(id=trial_id, compile_s=compile_s, bytes=max(0, held_bytes("VmHWM") - before))


def _died(trial: _Trial, status: int) -> Verdict:
    """A crash, a limit or a kill by this process: all are reported as a grammar that is too expensive."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    reasons = {signal.SIGSEGV: _STACK, signal.SIGABRT: _MEMORY, signal.SIGXCPU: _TIME, signal.SIGKILL: _TIME}
    message = reasons.get(signal.Signals(number), _CRASH) if number else _CRASH
    return Verdict(id=trial.id, code=GrammarTooComplexError.code, message=message)


_STACK = "the grammar is nested too deeply to compile"
_MEMORY = "the grammar takes too much memory to compile"
_TIME = "the grammar takes too long to compile"
_CRASH = "the grammar cannot be compiled"


if __name__ == "__main__":
    sys.exit(main())
