"""Grammars of one model: tried in a disposable process, then compiled here, and cached per scope.

A grammar is compiled in the worker only after the same compilation has succeeded in another process
(`grammar_process`) within limits on stack, memory and time, so its cost is known. Trials are cached per
tenant, so that response times do not reveal one tenant's grammars to another.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from stretto.errors import CapacityError, GrammarTooComplexError
from stretto.text.grammar_factory import Compiled, GrammarFactory
from stretto.text.tokenizer import Tokenizer
from stretto.worker.grammar_process import GrammarProcess
from stretto.worker.grammar_server import Verdict, Words

TRIED_MAX = 4096
HEAVY_CHARS = 1 << 14
STACK_BYTES = 32 << 20  # of the compiling thread: several times the trial's
TRIAL_TIMEOUT_S = 30.0


class Grammars:
    """Thread-safe. `factory` is called for the first grammar; without a factory nothing is cached."""

    def __init__(
        self, words: Callable[[], Words], factory: Callable[[], GrammarFactory] | None = None
    ) -> None:
        self._process = GrammarProcess(words)
        self._factory = factory
        self._tried: OrderedDict[tuple[Hashable, bytes], int] = OrderedDict()  # memory used by the trial
        self._lock = threading.Lock()

    @property
    def process_id(self) -> int | None:
        """Pid of the trial process; None before the first grammar."""
        return self._process.pid

    def known(self, grammar: str, scope: Hashable) -> bool:
        """Whether this scope has already tried it, which makes `compile` fast."""
        with self._lock:
            return (scope, _digest(grammar)) in self._tried

    def trial(self, grammar: str) -> Future[Verdict]:
        """Raises through the future. Cancelling it kills the trial."""
        return self._process.submit(grammar)

    def compile(self, grammar: str, scope: Hashable, verdict: Verdict | None = None) -> Compiled | None:
        """Compile here, after a trial in this scope. Keep the result while the grammar is in use."""
        key = (scope, _digest(grammar))
        with self._lock:
            known = self._tried.get(key)
            if known is not None:
                self._tried.move_to_end(key)
        size = verdict.bytes if verdict is not None else known
        assert size is not None, "compiled without a trial"
        made = None
        if self._factory is not None:
            made = _with_deep_stack(
                lambda factory: factory.compile(grammar, anew=known is None, size=size), self._factory
            )
        with self._lock:
            self._tried[key] = size
            while len(self._tried) > TRIED_MAX:
                self._tried.popitem(last=False)
        return made

    def check(self, grammar: str, scope: Hashable = "", leaving: Leaving | None = None) -> Compiled | None:
        """Trial and compilation; blocks."""
        if self.known(grammar, scope):
            return self.compile(grammar, scope)
        try:
            verdict = self._tried_now(grammar, leaving)
        except CapacityError:  # the trial process died, not because of a grammar: retry with a new one
            verdict = self._tried_now(grammar, leaving)
        return self.compile(grammar, scope, verdict)

    def _tried_now(self, grammar: str, leaving: Leaving | None) -> Verdict:
        future = self.trial(grammar)
        if leaving is not None:
            leaving.watch(future)
        try:
            return future.result(TRIAL_TIMEOUT_S)
        except TimeoutError:
            raise GrammarTooComplexError("the grammar takes too long to compile") from None
        finally:
            future.cancel()

    def close(self) -> None:
        self._process.close()


class Leaving:
    """Lets a caller cancel a trial that another thread is waiting for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._future: Future[Verdict] | None = None
        self._left = False

    def watch(self, future: Future[Verdict]) -> None:
        with self._lock:
            self._future = future
            left = self._left
        if left:
            future.cancel()

    def leave(self) -> None:
        with self._lock:
            self._left = True
            future = self._future
        if future is not None:
            future.cancel()


def words_of(tokenizer: Tokenizer) -> Words:
    """The vocabulary in the form the trial process needs."""
    tokens = range(tokenizer.vocab_size)
    return Words(
        tokens=[tokenizer.token_bytes(token) for token in tokens],
        eos=sorted(tokenizer.eos),
        control=[token for token in tokens if tokenizer.is_control(token)],
    )


def byte_words() -> Words:
    """For models without a vocabulary: every byte is a token."""
    return Words(tokens=[*(bytes([byte]) for byte in range(256)), b"<end>"], eos=[256], control=[])


def _digest(grammar: str) -> bytes:
    return hashlib.blake2b(grammar.encode("utf-8", "replace"), digest_size=16).digest()


def _with_deep_stack(
    work: Callable[[GrammarFactory], Compiled], factory: Callable[[], GrammarFactory]
) -> Compiled:
    """Run on a thread with a stack several times the trial's, so that a passed grammar cannot overflow it."""
    future: Future[Compiled] = Future()

    def run() -> None:
        try:
            future.set_result(work(factory()))
        except BaseException as error:
            future.set_exception(error)

    with _STACK_LOCK:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="stretto-compile", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return future.result()


_STACK_LOCK = threading.Lock()
