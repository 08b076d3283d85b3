"""A pool of contexts over one set of weights, for models that need only a few passes per request.

Each context has its own thread, created on demand. Requests wait in a packer until a context is free, ordered
by priority and round robin between tenants; waiting inputs are batched. A request ends with its result, when
its future is cancelled, at its deadline, or with the error of a pass that failed twice: after a failure the
context is rebuilt and the inputs of that batch run again one by one, so that only the faulty request fails.
Knows nothing about text or llama.cpp.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.errors import DeadlineError, InvariantError, QueueFullError, ShuttingDownError
from stretto.rpc.messages import PriorityName
from stretto.worker.packing import Item, Packer

Vectors = NDArray[np.float32]
CLOSE_TIMEOUT_S = 30.0
IDLE_S = 0.1  # after which a context rests


class Encoder(Protocol):
    """One context. Used by one thread at a time; `rebuild` is called after `run` has raised."""

    def run(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """One row per input; the inputs fit one batch."""
        ...

    def rebuild(self) -> None: ...

    def rest(self) -> None:
        """Nothing to do for a moment: give up what would slow other models down."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PoolStats:
    contexts: int
    busy: int
    requests: int  # waiting or running
    queued: Mapping[str, int]  # of these, by priority, those with no input in a batch yet
    batches: int
    inputs: int
    tokens: int
    failures: int
    batch_s: float  # duration of the last batch


@dataclass(slots=True, eq=False)
class _Job:
    inputs: Sequence[Sequence[int]]
    future: Future[Vectors]
    deadline_s: float | None
    priority: PriorityName
    tenant: str
    rows: list[Vectors | None]
    left: int
    on_start: Callable[[], None] | None = None
    running: bool = False  # at least one input is or was in a batch
    retried: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Counts:
    batches: int = 0
    inputs: int = 0
    tokens: int = 0
    failures: int = 0
    batch_s: float = 0.0


class ContextPool:
    def __init__(
        self,
        make: Callable[[], Encoder],
        *,
        size: int,
        packer: Packer,
        requests_max: int = 512,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self._make = make
        self._packer = packer
        self._requests_max = requests_max
        self._clock = clock
        self._numbers = itertools.count(1)
        self._jobs: dict[int, _Job] = {}
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._busy = 0
        self._counts = _Counts()
        self._refusing = False
        self._closed = False
        self._spare: Encoder | None = make()  # a context that cannot be created fails at load time

    # --- requests --------------------------------------------------------------------------------

    def submit(
        self,
        inputs: Sequence[Sequence[int]],
        *,
        deadline_s: float | None = None,
        priority: PriorityName = "default",
        tenant: str = "",
        on_start: Callable[[], None] | None = None,
    ) -> Future[Vectors]:
        """Queue non-empty inputs. Cancelling the future drops inputs that have not been computed yet.

        `on_start` is called once, on the context's thread, just before the first input is computed.

        `deadline_s` is on the pool's clock and does not interrupt a running batch. A named tenant cannot fill
        the whole queue: the last quarter is reserved for other tenants.
        """
        future: Future[Vectors] = Future()
        with self._changed:
            if self._refusing:
                raise ShuttingDownError("the model is being unloaded")
            if len(self._jobs) >= self._requests_max:
                raise QueueFullError(f"{len(self._jobs)} requests are already queued for this model")
            if tenant and self._of_tenant(tenant) >= max(1, self._requests_max * 3 // 4):
                raise QueueFullError("too many requests of this tenant are already queued for this model")
            number = next(self._numbers)
            rows: list[Vectors | None] = [None] * len(inputs)
            self._jobs[number] = _Job(
                inputs, future, deadline_s, priority, tenant, rows, len(inputs), on_start
            )
            lengths = [len(tokens) for tokens in inputs]
            self._packer.add(number, lengths, priority=priority, tenant=tenant)
            self._wake()
        future.add_done_callback(lambda _: self._forget(number))
        return future

    def _of_tenant(self, tenant: str) -> int:
        return sum(job.tenant == tenant for job in self._jobs.values())

    def _forget(self, number: int) -> None:
        with self._changed:
            self._jobs.pop(number, None)
            self._packer.drop(number)
            self._changed.notify_all()

    def _wake(self) -> None:
        """Put one more context to work: an idle one, or a new one."""
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < self.size:
            thread = threading.Thread(target=self._work, name="stretto-context", daemon=True)
            self._threads.append(thread)
            thread.start()

    # --- life ------------------------------------------------------------------------------------

    @property
    def stats(self) -> PoolStats:
        with self._changed:
            counts = self._counts
            return PoolStats(
                contexts=len(self._threads) + (self._spare is not None),
                busy=self._busy,
                requests=len(self._jobs),
                queued=Counter(job.priority for job in self._jobs.values() if not job.running),
                batches=counts.batches,
                inputs=counts.inputs,
                tokens=counts.tokens,
                failures=counts.failures,
                batch_s=counts.batch_s,
            )

    def drain(self) -> None:
        """Reject new requests; queued and running ones still complete."""
        with self._changed:
            self._refusing = True

    def close(self) -> bool:
        """End all requests. Running batches are awaited, because C code cannot be interrupted.

        False if a batch did not finish in time: the weights must not be freed while it runs.
        """
        with self._changed:
            self._refusing = self._closed = True
            waiting, self._jobs = list(self._jobs.values()), {}
            self._changed.notify_all()
        for job in waiting:
            _settle(job.future, ShuttingDownError("the model is being unloaded"))
        for thread in list(self._threads):
            thread.join(CLOSE_TIMEOUT_S)
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        return not any(thread.is_alive() for thread in self._threads)

    # --- the threads -----------------------------------------------------------------------------

    def _work(self) -> None:
        encoder: Encoder | None = None
        while (batch := self._next(encoder)) is not None:
            inputs = [tokens for _, tokens in batch]
            items = [item for item, _ in batch]
            try:
                encoder = encoder or self._take_spare() or self._make()
                started = self._clock()
                rows = encoder.run(inputs)
                if len(rows) != len(inputs):
                    raise InvariantError(f"got {len(rows)} vectors for {len(inputs)} inputs")
            except Exception as error:
                if encoder is None and self._retired(items):
                    return
                encoder = _rebuilt(encoder)
                self._failed(items, error)
            else:
                self._deliver(items, rows, sum(map(len, inputs)), self._clock() - started)
        if encoder is not None:
            encoder.close()

    def _retired(self, items: Sequence[Item]) -> bool:
        """No memory for another context: the others take over its work, and no more are created."""
        with self._changed:
            if len(self._threads) == 1:
                return False
            self._threads.remove(threading.current_thread())
            self.size = len(self._threads)
            self._busy -= 1
            self._counts.failures += 1
            for item in items:
                self._packer.retry(item)
            self._changed.notify_all()
            return True

    def _take_spare(self) -> Encoder | None:
        with self._changed:
            spare, self._spare = self._spare, None
            return spare

    def _next(self, encoder: Encoder | None) -> list[tuple[Item, Sequence[int]]] | None:
        """Block until there is a batch; None once the pool is closed. Meanwhile `encoder` rests."""
        while True:
            with self._changed:
                while not self._closed and not self._packer.waiting:
                    self._idle += 1
                    woken = self._changed.wait(IDLE_S if encoder is not None else None)
                    self._idle -= 1
                    if encoder is not None and not woken:
                        encoder.rest()
                        encoder = None
                if self._closed:
                    return None
                late = self._take_late()
                items = self._packer.take()
                if self._packer.waiting:
                    self._wake()
                self._busy += bool(items)
                batch = [(item, self._jobs[item.request].inputs[item.number]) for item in items]
                begun = self._begin(items)
            for job in late:
                _settle(job.future, DeadlineError("the deadline passed while the request was queued"))
            for tell in begun:
                tell()
            if batch:
                return batch

    def _begin(self, items: Sequence[Item]) -> list[Callable[[], None]]:
        """`on_start` callbacks of requests whose first input is about to be computed."""
        fresh = [job for item in items if not (job := self._jobs[item.request]).running]
        told = [job.on_start for job in dict.fromkeys(fresh) if job.on_start is not None]
        for job in fresh:
            job.running = True
        return told

    def _take_late(self) -> list[_Job]:
        now = self._clock()
        late = [n for n, job in self._jobs.items() if job.deadline_s is not None and job.deadline_s <= now]
        for number in late:
            self._packer.drop(number)
        return [self._jobs.pop(number) for number in late]

    def _deliver(self, items: Sequence[Item], rows: Vectors, tokens: int, took_s: float) -> None:
        done: list[_Job] = []
        with self._changed:
            self._busy -= 1
            counts = self._counts
            counts.batches += 1
            counts.inputs += len(items)
            counts.tokens += tokens
            counts.batch_s = took_s
            for item, row in zip(items, rows, strict=True):
                job = self._jobs.get(item.request)
                if job is None:
                    continue  # cancelled meanwhile
                job.rows[item.number] = row
                job.left -= 1
                if not job.left:
                    done.append(job)
        for job in done:
            _settle(job.future, np.stack([row for row in job.rows if row is not None]))

    def _failed(self, items: Sequence[Item], error: Exception) -> None:
        """Retry each input once, alone; a second failure ends its request."""
        ended: list[_Job] = []
        with self._changed:
            self._busy -= 1
            self._counts.failures += 1
            for item in items:
                job = self._jobs.get(item.request)
                if job is None:
                    continue
                if item.number in job.retried:
                    ended.append(job)
                else:
                    job.retried.add(item.number)
                    self._packer.retry(item)
        for job in ended:
            _settle(job.future, error)


def _rebuilt(encoder: Encoder | None) -> Encoder | None:
    """The rebuilt context; None if that fails too, so that the next batch creates another."""
    if encoder is None:
        return None
    try:
        encoder.rebuild()
    except Exception:
        with contextlib.suppress(Exception):
            encoder.close()
        return None
    return encoder


def _settle(future: Future[Any], outcome: Vectors | Exception) -> None:
    """Resolve a future, unless its caller cancelled it first."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
