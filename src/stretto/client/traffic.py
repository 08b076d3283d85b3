"""Traffic: every request from submission to its single end, across worker restarts.

A pure state machine without a clock, composed of the batcher and the registry. A request is queued, sent in a
call, then accepted; its tokens and its end arrive in frames. When the worker dies, requests without any
output are queued once more; requests with output, or that lost a second worker, end with `runtime_lost`.
Requests in flight at a death are retried one at a time and rejected if the worker dies again: see
`quarantine`. `client.rpc_client` does the I/O: it sends what `due` returns and reports the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from stretto.client.batch_call import BatchCall
from stretto.client.batch_stats import BatchEvent
from stretto.client.batcher import GenerateBatcher
from stretto.client.quarantine import Quarantine, Standing
from stretto.client.stream import NOWHERE, ClientStream
from stretto.client.streams import StreamRegistry
from stretto.client.text_limits import TextLimits
from stretto.errors import DeadlineError, RuntimeLostError, ShuttingDownError, StrettoError
from stretto.rpc.messages import BatchItem, Error, GenerateParams, StreamBatch, error_from
from stretto.settings import EngineSettings, GenerateBatcherSettings

TRIAL_S_MAX = 10.0  # a suspect still without a slot then no longer blocks the others
LOST = "the worker died while processing this request"


@dataclass(slots=True, eq=False)
class Ticket:
    """One request that has not ended."""

    params: GenerateParams
    stream: ClientStream
    deadline_s: float | None
    call: BatchCall | None = None  # the call that carries it; None while queued
    replayed: bool = False
    prompt_tokens: int | None = None  # known once the worker has accepted it
    awaited: bool = False  # a caller waits for acceptance
    digest: bytes = b""  # of its content, if needed: see `client.quarantine`


class Traffic:
    def __init__(
        self,
        settings: EngineSettings,
        batching: GenerateBatcherSettings,
        *,
        on_dispatched: Callable[[BatchEvent], None] | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.registry = StreamRegistry(settings, on_backpressure=self._pause)
        self.batcher = GenerateBatcher(batching, capacity=self.registry.capacity, on_dispatched=on_dispatched)
        self.quarantine = quarantine or Quarantine()
        self.text_limits = TextLimits()
        self._suspects: deque[Ticket] = deque()  # wait to be tried, one at a time
        self._tried: Ticket | None = None
        self._trial_ends_s = 0.0
        self.epoch = NOWHERE  # of the connected worker process
        self.draining = False
        self.replays = 0
        self._refusal: Error | None = None
        self._tickets: dict[str, Ticket] = {}
        self._cancels: list[str] = []
        self._withdrawn: dict[str, BatchCall] = {}  # cancelled while their call is unanswered

    # --- from callers ----------------------------------------------------------------------------

    def submit(self, params: GenerateParams, *, now_s: float, wake: Callable[[], None]) -> Ticket:
        """Never raises: a rejection ends the stream."""
        deadline_s = None if params.deadline_ms is None else now_s + params.deadline_ms / 1000
        try:
            if self.draining:
                raise ShuttingDownError("the server is shutting down")
            self.text_limits.check(params)
            stream = self.registry.register(
                params.stream_id, tenant=params.tenant, now_s=now_s, wake=wake, number=params.number
            )
        except StrettoError as refusal:
            return self._refused(params, error_from(refusal), now_s)
        ticket = Ticket(params, stream, deadline_s)
        if self._refusal is not None:
            self.registry.fail(stream, self._refusal, now_s)
            return ticket
        self._tickets[params.stream_id] = ticket
        self._admit(ticket, now_s)
        return ticket

    def _refused(self, params: GenerateParams, error: Error, now_s: float) -> Ticket:
        return Ticket(params, self.registry.rejected(params.stream_id, error, now_s=now_s), None)

    # --- suspects --------------------------------------------------------------------------------

    def _admit(self, ticket: Ticket, now_s: float) -> None:
        """Queue the request, unless a worker died with the same request in flight."""
        if self.quarantine.empty:
            self._enqueue(ticket, now_s)
            return
        ticket.digest = ticket.digest or self.quarantine.digest(ticket.params)
        standing = self.quarantine.standing(ticket.digest, now_s)
        if standing is Standing.REFUSED:
            self._fail(ticket, error_from(self.quarantine.refusal(ticket.digest, now_s)), now_s)
        elif standing is Standing.SUSPECT:
            self._suspects.append(ticket)
            self._try_next(now_s)
        else:
            self._enqueue(ticket, now_s)

    def _try_next(self, now_s: float) -> None:
        while self._suspects and self._tried is None:
            ticket = self._suspects[0]
            standing = self.quarantine.standing(ticket.digest, now_s)
            if standing is Standing.SUSPECT and not self.quarantine.begin_trial(ticket.digest):
                return  # another kind of call is on trial
            self._suspects.popleft()
            if standing is Standing.REFUSED:
                self._fail(ticket, error_from(self.quarantine.refusal(ticket.digest, now_s)), now_s)
                continue
            if standing is Standing.SUSPECT:
                self._tried, self._trial_ends_s = ticket, now_s + TRIAL_S_MAX
            self._enqueue(ticket, now_s)

    def _trial_over(self, now_s: float, *, passed: bool) -> None:
        ticket, self._tried = self._tried, None
        if ticket is not None:
            self.quarantine.end_trial(ticket.digest, passed=passed)
        self._try_next(now_s)

    def _in_flight(self) -> Iterator[GenerateParams]:
        """Requests sent to the worker that have not ended, including withdrawn ones."""
        for ticket in self._tickets.values():
            if ticket.call is not None:
                yield ticket.params
        for stream_id, call in self._withdrawn.items():
            yield from (entry.params for entry in call.entries if entry.params.stream_id == stream_id)

    def _enqueue(self, ticket: Ticket, now_s: float) -> None:
        ticket.call = None
        params = ticket.params
        self.batcher.enqueue(
            params,
            now_s=now_s,
            priority=params.priority,
            deadline_s=ticket.deadline_s,
            request_id=params.request_id,
        )

    def cancel(self, ticket: Ticket, now_s: float) -> None:
        """Safe at any time; idempotent."""
        if self.registry.leave(ticket.stream, now_s):
            self._withdraw(ticket)

    def drain(self, now_s: float) -> None:
        """Reject new requests, end queued ones, let sent ones finish."""
        self.draining = True
        error = error_from(ShuttingDownError("the server is shutting down"))
        for ticket in list(self._tickets.values()):
            if ticket.call is None:
                self._fail(ticket, error, now_s)

    # --- to the worker --------------------------------------------------------------------------

    def due(self, now_s: float) -> list[BatchCall]:
        return self.batcher.due(now_s) if self.epoch != NOWHERE else []

    def wake_at_s(self) -> float | None:
        return self.batcher.wake_at_s() if self.epoch != NOWHERE else None

    def seal(self, call: BatchCall, now_s: float) -> list[GenerateParams]:
        """Just before sending: the requests to send, with the time left until each deadline."""
        sealed = []
        for entry in self.batcher.seal(call, now_s):
            ticket = self._tickets[entry.params.stream_id]
            ticket.call, ticket.stream.epoch, ticket.stream.sent_s = call, self.epoch, now_s
            sealed.append(_with_time_left(entry.params, ticket.deadline_s, now_s))
        return sealed

    def take_cancels(self) -> list[str]:
        """Streams that the worker should stop generating."""
        taken, self._cancels = self._cancels, []
        return taken

    @property
    def has_cancels(self) -> bool:
        return bool(self._cancels)

    # --- from the worker ------------------------------------------------------------------------

    def connected(self, epoch: int, *, batching: bool) -> None:
        self.epoch, self._refusal = epoch, None
        self.batcher.allow_batching(batching)

    def answered(self, call: BatchCall, items: list[BatchItem], now_s: float) -> None:
        """One answer per request, in the order of the call."""
        if len(items) != len(call.entries):
            self.failed(
                call, Error(code=StrettoError.code, message="the worker answered another batch"), now_s
            )
            return
        rejected = sum(item.error is not None or item.result is None for item in items)
        self.batcher.answered(call, now_s, rejected=rejected)
        for entry, item in zip(call.entries, items, strict=True):
            ticket = self._tickets.get(entry.params.stream_id)
            if ticket is None or ticket.call is not call:
                self._repeat_cancel(entry.params.stream_id, call)
            elif item.error is not None or item.result is None:
                self._close(ticket)
                self.registry.fail(ticket.stream, item.error or _no_answer(), now_s)
            else:
                ticket.prompt_tokens = item.result.prompt_tokens
                if ticket.awaited:
                    ticket.stream.wake()

    def _repeat_cancel(self, stream_id: str, call: BatchCall) -> None:
        """Repeat a cancellation that may have reached the worker before its request."""
        if self._withdrawn.pop(stream_id, None) is call and self._has_worker:
            self._cancels.append(stream_id)

    def failed(self, call: BatchCall, error: Error, now_s: float) -> None:
        """The whole call failed: rejected, timed out, or its answer was invalid."""
        self.batcher.answered(call, now_s, failed=True)
        for entry in call.entries:
            ticket = self._tickets.get(entry.params.stream_id)
            if ticket is not None and ticket.call is call:
                self._fail(ticket, error, now_s)
            self._repeat_cancel(entry.params.stream_id, call)

    def frames(self, batch: StreamBatch, *, epoch: int, now_s: float) -> None:
        self.registry.route(batch, epoch=epoch, now_s=now_s)
        if self._tried is not None and self._tried.stream.delivered:
            self._trial_over(now_s, passed=True)
        for end in batch.ends:
            ticket = self._tickets.get(end.stream_id)
            if ticket is not None and ticket.stream.end is not None:
                self._close(ticket)
                if ticket.digest:
                    self.quarantine.end_trial(ticket.digest, passed=True)
        for stream in self.registry.take_overfull(now_s):
            self._withdraw(self._tickets[stream.id])

    def lost(self, now_s: float, *, others: Iterable[bytes] = ()) -> None:
        """The worker died. Output that already arrived is kept.

        `others`: digests of other calls in flight (not generations).
        """
        self.epoch = NOWHERE
        self.quarantine.died([*map(self.quarantine.digest, self._in_flight()), *others], now_s)
        self._tried = None
        self._cancels, self._withdrawn = [], {}
        self.batcher.lost()
        for ticket in list(self._tickets.values()):
            if ticket.call is not None:
                self._replay_or_fail(ticket, now_s)

    def _replay_or_fail(self, ticket: Ticket, now_s: float) -> None:
        digest = ticket.digest
        if digest and self.quarantine.standing(digest, now_s) is Standing.REFUSED:
            self._fail(ticket, error_from(self.quarantine.refusal(digest, now_s)), now_s)
            return
        if ticket.stream.delivered or ticket.replayed or self.draining:
            self._fail(ticket, error_from(RuntimeLostError(LOST)), now_s)
            return
        ticket.replayed = True
        self.replays += 1
        self.registry.begin_anew(ticket.stream)
        ticket.call = None
        self._admit(ticket, now_s)

    def give_up(self, error: Error, now_s: float) -> None:
        """No worker will be available: end all requests, and reject new ones until a worker is up."""
        self._refusal = error
        for ticket in list(self._tickets.values()):
            self._fail(ticket, error, now_s)

    # --- time ------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        for ticket in [
            one for one in self._suspects if one.deadline_s is not None and now_s >= one.deadline_s
        ]:
            late = DeadlineError("the deadline passed while the request was queued")
            self._fail(ticket, error_from(late), now_s)
        if self._tried is not None and now_s >= self._trial_ends_s:
            self._trial_over(now_s, passed=False)
        self._try_next(now_s)
        for entry in self.batcher.expired(now_s):
            late = DeadlineError("the deadline passed before a worker could accept the request")
            self._fail(self._tickets[entry.params.stream_id], error_from(late), now_s)
        for stream in self.registry.expire(now_s):
            self._withdraw(self._tickets[stream.id])

    # --- ends ------------------------------------------------------------------------------------

    def _fail(self, ticket: Ticket, error: Error, now_s: float) -> None:
        self._withdraw(ticket)
        self.registry.fail(ticket.stream, error, now_s)

    def _withdraw(self, ticket: Ticket) -> None:
        """Remove it from the queue, or cancel it in the worker."""
        self._close(ticket)
        stream_id = ticket.params.stream_id
        if self.batcher.abort(stream_id) or ticket.call is None or not self._has_worker:
            return
        self._cancels.append(stream_id)
        if self.batcher.in_flight(ticket.call):
            self._withdrawn[stream_id] = ticket.call

    def _close(self, ticket: Ticket) -> None:
        del self._tickets[ticket.params.stream_id]
        if ticket in self._suspects:
            self._suspects.remove(ticket)
        if ticket is self._tried:
            self._tried = None
            self.quarantine.end_trial(ticket.digest, passed=False)

    @property
    def _has_worker(self) -> bool:
        return self.epoch != NOWHERE

    def _pause(self, tenant: str, now_s: float) -> None:
        self.batcher.pause(tenant, now_s)

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        return len(self._tickets)


def _with_time_left(params: GenerateParams, deadline_s: float | None, now_s: float) -> GenerateParams:
    if deadline_s is None:
        return params
    return msgspec.structs.replace(params, deadline_ms=max(0.0, (deadline_s - now_s) * 1000))


def _no_answer() -> Error:
    return Error(code=StrettoError.code, message="the worker's answer names neither a result nor an error")
