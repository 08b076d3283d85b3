"""A worker that answers calls with a known text, in virtual time, and misbehaves on request.

Token i of a stream is `<stream id>:<i> `, so that a reader can detect lost and invented output. Faults follow
the odds of the scenario: it dies, hangs, drops its connection, answers twice, late, never or with garbage,
and sends frames for streams it was never given.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.errors import InvalidRequestError
from stretto.rpc import messages as m
from stretto.rpc.connection import Connection
from stretto.rpc.envelope import STREAM_BATCH, Call, Notification, Received, Reply
from stretto.rpc.heartbeat import Heartbeat
from stretto.testing.client_wire import SimulatedWire

TICK_S = 0.005


def token_text(stream_id: str, index: int) -> str:
    return f"{stream_id}:{index} "


WINDOW = 4096  # of the model "bounded", whose tokens are bytes


@dataclass(frozen=True, slots=True)
class Odds:
    """Probability of each fault, per tick or per call."""

    die: float = 0.0
    hang: float = 0.0
    drop: float = 0.0
    die_young: float = 0.0  # before it listens
    reply_twice: float = 0.0
    reply_late: float = 0.0
    reply_never: float = 0.0
    reply_wrong: float = 0.0
    refuse: float = 0.0  # one request of a batch
    stray: float = 0.0  # frames for streams that are not its own
    end_twice: float = 0.0
    ignore_abort: float = 0.0
    batching: bool = True


@dataclass(slots=True)
class WorkerRecord:
    """What all worker processes received and sent, for the invariants."""

    taken: list[tuple[int, str]] = field(default_factory=list)  # (life, stream id)
    batches: list[list[m.GenerateParams]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    seen_ids: list[str] = field(default_factory=list)
    lives: list[SimulatedChild] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)  # stream id -> epoch whose text the client received


class SimulatedChild:
    """One worker process. Implements `client.host.Child` and the worker behind it."""

    def __init__(self, life: int, rng: random.Random, odds: Odds, record: WorkerRecord) -> None:
        self.life = life
        self._rng, self._odds, self._record = rng, odds, record
        self._loop = asyncio.get_running_loop()
        self._died: asyncio.Future[int] = self._loop.create_future()
        self._wire = SimulatedWire(rng)
        self._hung = False
        self._beat_s = 0.0
        self._left: dict[str, int] = {}  # stream id -> tokens left
        self._done: dict[str, int] = {}
        self._tick_timer: asyncio.TimerHandle | None = None
        self._wire.worker.open(self._receive, lambda _error: None)  # it lives on without a client
        self._wire.client.heard = self._note_heard
        record.lives.append(self)
        if self._chance("die young", odds.die_young):
            self._loop.call_later(rng.random() * 0.2, self.die, 3)
        else:
            self._beat()

    # --- client.host.Child -----------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return 10_000 + self.life

    async def wait(self) -> int:
        return await asyncio.shield(self._died)

    def signal(self, number: int) -> None:
        polite = number in (signal.SIGTERM, signal.SIGABRT)
        if number == signal.SIGUSR1 or (
            polite and self._hung and self._rng.random() < self._odds.ignore_abort
        ):
            return
        self._loop.call_later(self._rng.random() * 0.02, self.die, -number)

    async def connect(self) -> Connection:
        await asyncio.sleep(0.05 + self._rng.random() * 0.3)
        return self._wire.client

    def heartbeat(self) -> Heartbeat | None:
        return Heartbeat(self.pid, self._beat_s, ()) if self._beat_s else None

    def clean_up(self) -> None:
        assert self.dead, "cleaned up before its death"

    # --- life and death --------------------------------------------------------------------------

    @property
    def dead(self) -> bool:
        return self._died.done()

    @property
    def busy_with(self) -> list[str]:
        return [] if self.dead else list(self._left)

    def die(self, code: int) -> None:
        if self.dead:
            return
        self._wire.cut()
        if self._rng.random() < 0.5:
            self._exit(code)
        else:  # the connection is noticed first
            self._loop.call_later(0.02, self._exit, code)

    def _exit(self, code: int) -> None:
        if not self.dead:
            self._died.set_result(code)

    def _beat(self) -> None:
        if not self.dead and not self._hung:
            self._beat_s = self._loop.time()
            self._loop.call_later(0.25, self._beat)

    def _chance(self, name: str, odds: float) -> bool:
        hit = odds > 0 and self._rng.random() < odds
        if hit:
            self._record.faults[name] += 1
        return hit

    def _note_heard(self, envelope: Received) -> None:
        if isinstance(envelope, Notification) and isinstance(envelope.params, m.StreamBatch):
            for stream_id in envelope.params.streams:
                if stream_id in self._left or stream_id in self._done:
                    self._record.heard[stream_id] = self.life

    # --- calls -----------------------------------------------------------------------------------

    def _receive(self, envelope: Received) -> None:
        if self.dead or self._hung or not isinstance(envelope, Call):
            return
        self._record.calls[envelope.method] += 1
        params = envelope.params
        if isinstance(params, m.BatchGenerateParams):
            self._record.batches.append(params.requests)
            self._prepare(envelope, params.requests)
        elif isinstance(params, m.GenerateParams):
            self._prepare(envelope, [params])
        elif isinstance(params, m.CancelParams):
            self._cancel(params.stream_id)
            self._reply(envelope, m.Empty())
        elif envelope.method == "runtime/info":
            self._stray_alone()  # before it was given anything at all
            self._reply(envelope, self._info())
        elif envelope.method == "shutdown":
            self._reply(envelope, m.Empty())
            self._loop.call_later(0.01, self.die, 0)
        else:
            self._reply(envelope, m.Empty())

    def _info(self) -> m.WorkerInfo:
        capabilities = [c for c in m.CAPABILITIES if c != "batch_generate" or self._odds.batching]
        bound = m.TextBound(tokens_max=WINDOW, token_bytes_max=1)
        return m.WorkerInfo(
            version="0",
            protocol=m.PROTOCOL_VERSION,
            pid=self.pid,
            capabilities=capabilities,
            models=[m.ModelInfo(id="bounded", text_bound=bound)],
        )

    def _prepare(self, call: Call, requests: list[m.GenerateParams]) -> None:
        """Reading and tokenizing take a moment; a cancellation in between finds nothing."""
        self._record.seen_ids += [request.stream_id for request in requests]
        self._loop.call_later(self._rng.random() * 0.004, self._take_in, call, requests)

    def _take_in(self, call: Call, requests: list[m.GenerateParams]) -> None:
        if self.dead or self._hung:
            return
        items = [self._item(request) for request in requests]
        if self._chance("reply wrong", self._odds.reply_wrong) and len(items) > 1:
            items = items[1:]
        if call.method == "batch_generate":
            self._reply(call, m.BatchGenerateResult(results=items))
        elif items[0].error is not None:
            self._send_reply(Reply(call.id, error=items[0].error))
        else:
            self._reply(call, items[0].result)
        if self._tick_timer is None and self._left:
            self._tick_timer = self._loop.call_later(TICK_S, self._tick)

    def _item(self, request: m.GenerateParams) -> m.BatchItem:
        stream_id = request.stream_id
        self._record.taken.append((self.life, stream_id))
        if self._chance("refuse", self._odds.refuse):
            return m.BatchItem(success=False, error=m.error_from(InvalidRequestError("refused by the dice")))
        self._left[stream_id], self._done[stream_id] = request.max_tokens or 1, 0
        return m.BatchItem(success=True, result=m.GenerateResult(stream_id=stream_id, prompt_tokens=7))

    def _reply(self, call: Call, result: m.Message | None) -> None:
        if self._chance("reply never", self._odds.reply_never) and call.method != "runtime/info":
            return
        reply = Reply(call.id, result=result)
        if self._chance("reply late", self._odds.reply_late):
            self._loop.call_later(self._rng.random() * 4.0, self._send_reply, reply)
            return
        self._send_reply(reply)
        if self._chance("reply twice", self._odds.reply_twice):
            self._loop.call_later(self._rng.random() * 0.1, self._send_reply, reply)

    def _send_reply(self, reply: Reply) -> None:
        if not self.dead and not self._hung:
            self._wire.worker.send(reply)

    def _cancel(self, stream_id: str) -> None:
        if self._left.pop(stream_id, None) is not None:
            self._send(m.StreamBatch(ends=[m.StreamEnd(stream_id=stream_id, finish_reason="cancelled")]))

    # --- ticks -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._tick_timer = None
        if self.dead or self._hung or self._mishap():
            return
        batch = m.StreamBatch()
        for stream_id in list(self._left):
            self._advance(stream_id, batch)
        if self._chance("stray", self._odds.stray):
            now_over = {end.stream_id for end in batch.ends}  # in one frame ends come after texts
            over = [s for s in self._done if s not in self._left and s not in now_over]
            self._stray(batch, [*over[-20:], "nobody"])
        self._send(batch)
        if self._left:
            self._tick_timer = self._loop.call_later(TICK_S, self._tick)

    def _mishap(self) -> bool:
        if self._chance("die", self._odds.die):
            self.die(-signal.SIGSEGV)
        elif self._chance("hang", self._odds.hang):
            self._hung = True
        elif self._chance("drop", self._odds.drop):
            self._wire.cut()
        else:
            return False
        return True

    def _advance(self, stream_id: str, batch: m.StreamBatch) -> None:
        batch.streams.append(stream_id)
        batch.texts.append(token_text(stream_id, self._done[stream_id]))
        batch.counts.append(1)
        self._done[stream_id] += 1
        self._left[stream_id] -= 1
        if self._left[stream_id] <= 0:
            del self._left[stream_id]
            end = m.StreamEnd(stream_id=stream_id, finish_reason="stop")
            batch.ends.append(end)
            if self._chance("end twice", self._odds.end_twice):
                batch.ends.append(end)

    def _stray_alone(self) -> None:
        """A new process sends frames for streams of the previous one."""
        batch = m.StreamBatch()
        for _ in range(8):
            if self._record.seen_ids and self._chance("stray", 2 * self._odds.stray):
                self._stray(batch, self._record.seen_ids[-20:])
        self._send(batch)

    def _stray(self, batch: m.StreamBatch, strangers: list[str]) -> None:
        """Text and an end for a stream that has ended or belonged to another process."""
        stranger = self._rng.choice(strangers)
        batch.streams.append(stranger)
        batch.texts.append("made up")
        batch.counts.append(1)
        batch.ends.append(m.StreamEnd(stream_id=stranger, finish_reason="stop"))

    def _send(self, batch: m.StreamBatch) -> None:
        if batch.streams or batch.ends:
            self._wire.worker.send(Notification(STREAM_BATCH, batch))


class SimulatedLauncher:
    """Implements `client.host.Launcher`."""

    def __init__(self, rng: random.Random, odds: Odds) -> None:
        self._rng, self._odds = rng, odds
        self.record = WorkerRecord()
        self.faults_on = True
        self.on_launch: Callable[[], None] = lambda: None

    async def launch(self, epoch: int) -> SimulatedChild:
        self.on_launch()
        await asyncio.sleep(self._rng.random() * 0.01)
        odds = self._odds if self.faults_on else Odds(batching=self._odds.batching)
        return SimulatedChild(epoch, self._rng, odds, self.record)

    def close(self) -> None:
        assert all(child.dead for child in self.record.lives), "a worker outlives its client"
