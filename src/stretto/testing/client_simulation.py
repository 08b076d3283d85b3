"""One seed of the client in virtual time: the real client, a simulated worker, faults, readers, invariants.

All production code runs unchanged (client, traffic, batcher, registry, supervisor, transport, frames); only
the clock, the process and the wire are simulated. Readers submit, read fast or slowly, and leave early. Then
the faults stop, every reader reads to the end, and the invariants are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.client.batch_stats import BatchEvent
from stretto.client.generation import Generation
from stretto.client.host import SupervisedHost
from stretto.client.rpc_client import RpcClient
from stretto.errors import StrettoError
from stretto.rpc.messages import GenerateParams, Guidance
from stretto.settings import EngineSettings, GenerateBatcherSettings, Settings
from stretto.testing.client_clock import VirtualLoop
from stretto.testing.client_worker import Odds, SimulatedLauncher, token_text

REQUESTS = 60
LOST_ERROR_S_MAX = 1.0
ENDLESS = 100_000  # tokens: only for a reader that leaves
PATIENCE_S = 200.0  # of virtual time, for all requests to end once the faults have stopped


class LawBroken(AssertionError):
    """A violated invariant of the client."""


@dataclass(slots=True)
class ClientReport:
    seeds: int = 0
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    sometimes: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    digest: str = ""

    def add(self, other: ClientReport) -> None:
        self.seeds += other.seeds
        self.requests += other.requests
        self.outcomes += other.outcomes
        self.faults += other.faults
        self.sometimes += other.sometimes
        self.virtual_s += other.virtual_s


@dataclass(slots=True, eq=False)
class _Client:
    """One request, and everything its reader saw."""

    params: GenerateParams
    generation: Generation
    text: str = ""
    ends: list[str] = field(default_factory=list)
    leaves: bool = False
    stalled: bool = False


def draw_odds(rng: random.Random) -> Odds:
    """A third of all seeds is calm; the others mix a few kinds of trouble."""
    batching = rng.random() < 0.85
    if rng.random() < 0.33:
        return Odds(batching=batching)
    some = {name: rng.random() * most for name, most in _MOST.items() if rng.random() < 0.5}
    return Odds(batching=batching, ignore_abort=rng.random(), **some)


_MOST = {
    "die": 0.05,
    "hang": 0.02,
    "drop": 0.03,
    "die_young": 0.9,
    "reply_twice": 0.5,
    "reply_late": 0.1,
    "reply_never": 0.05,
    "reply_wrong": 0.05,
    "refuse": 0.1,
    "stray": 0.3,
    "end_twice": 0.3,
}


class ClientSimulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.odds = draw_odds(self.rng)
        self.calm = self.odds == Odds(batching=self.odds.batching)
        self.launcher = SimulatedLauncher(self.rng, self.odds)
        self.settings = self._draw_settings()
        self.clients: list[_Client] = []
        self.report = ClientReport(seeds=1)
        self.trace: list[str] = []
        self.lost_s: list[float] = []
        self.late: list[str] = []
        self.give_ups = self.launches_beyond = 0

    def _draw_settings(self) -> Settings:
        client_settings = EngineSettings(
            streams_max=self.rng.choice([15, 40, 1000]),
            stream_credit_tokens=4,
            stream_buffer_bytes=self.rng.choice([1024, 4096, 1 << 20]),
            slow_consumer_timeout_s=self.rng.choice([0.5, 5.0]),
            stream_timeout_s=60.0,
            stream_idle_timeout_s=10.0,
            load_timeout_s=3.0,
            hang_soft_s=0.6,
            hang_hard_s=1.0,
            kill_grace_s=0.2,
            start_timeout_s=2.0,
            restarts_max=self.rng.choice([2, 5, 50]),
            stable_after_s=0.2,
        )
        return Settings(engine=client_settings, generate_batcher=GenerateBatcherSettings(max_batch_size=8))

    def run(self) -> ClientReport:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(self._run(loop))
            if loop.unhandled:
                raise LawBroken(f"an unhandled exception: {loop.unhandled[0]}")
        finally:
            _wind_up(loop)
        self.report.faults += self.launcher.record.faults
        return self.report

    async def _run(self, loop: VirtualLoop) -> None:
        started_s = loop.time()
        self.host = SupervisedHost(self.launcher, self.settings.engine, jitter=self.rng.random)
        self.launcher.on_launch = self._launched
        self.worker_client = _WatchedClient(
            self.host, self.settings, on_dispatched=self._dispatched, clock=loop.time
        )
        self.worker_client.losses_s, self.worker_client.given_up = self.lost_s, self._given_up
        try:
            await self.worker_client.start()
        except StrettoError:
            self.report.sometimes["never came up"] += 1
            return
        readers = await self._traffic(loop)
        self.launcher.faults_on = False
        await self._all_end(readers, loop)
        await self._settle()
        self._check_laws()
        await self.worker_client.close()
        self.report.virtual_s = loop.time() - started_s

    # --- clients ---------------------------------------------------------------------------------

    async def _traffic(self, loop: VirtualLoop) -> list[asyncio.Task[None]]:
        readers = []
        while len(self.clients) < REQUESTS:
            burst = self.rng.choice([1, 1, 1, 2, 5, 12])
            for _ in range(burst):
                client = self._submit(len(self.clients))
                readers.append(loop.create_task(self._read(client, loop)))
            await asyncio.sleep(self.rng.choice([0.0, 0.0002, 0.001, 0.02, 0.2]) * self.rng.random())
        return readers

    def _submit(self, number: int) -> _Client:
        rng = self.rng
        params = GenerateParams(
            stream_id=f"s{number}",
            model_id=rng.choice(["a", "a", "a", "b"]),
            prompt="x",
            max_tokens=rng.choice([1, 3, 10, 40, 40, ENDLESS]),
            priority=rng.choice(["urgent", "default", "default", "background"]),
            tenant=rng.choice(["", "t1", "t2"]),
            guidance=Guidance(mode="json_object") if rng.random() < 0.1 else None,
            deadline_ms=rng.random() * 3000 if rng.random() < 0.1 else None,
        )
        client = _Client(params, self.worker_client.generate(params))
        client.leaves = params.max_tokens == ENDLESS or rng.random() < 0.05
        client.stalled = not client.leaves and rng.random() < 0.1
        self.clients.append(client)
        self.report.requests += 1
        return client

    async def _read(self, client: _Client, loop: VirtualLoop) -> None:
        """Read to the end, or leave early. A stalled reader sleeps long between two reads."""
        if client.leaves and self.rng.random() < 0.5:
            await self._read_and_go(client)
            return
        if client.leaves:
            loop.call_later(self.rng.random() * 0.1, client.generation.cancel)
        try:
            await self._read_on(client)
        except StrettoError as error:
            client.ends.append(error.code)
            self._check_promptness(client, error.code, loop.time())
        async for delta in client.generation:
            raise LawBroken(f"{client.params.stream_id}: a delta after its end: {delta}")
        self.trace.append(f"{loop.time():.6f} {client.params.stream_id} {client.ends} {len(client.text)}")

    async def _read_on(self, client: _Client) -> None:
        pause_s = self.rng.random() * (3.0 if client.stalled else 0.01)
        async for delta in client.generation:
            client.text += delta.text
            if delta.end is not None:
                client.ends.append(delta.end.finish_reason)
            if client.stalled or self.rng.random() < 0.2:
                await asyncio.sleep(pause_s)

    async def _read_and_go(self, client: _Client) -> None:
        """Like a closed connection: cancel, and never read again."""
        with contextlib.suppress(TimeoutError, StrettoError):
            await asyncio.wait_for(self._read_on(client), self.rng.random() * 0.1)
        client.generation.cancel()
        client.generation.cancel()
        client.ends = client.ends or ["left"]

    async def _all_end(self, readers: list[asyncio.Task[None]], loop: VirtualLoop) -> None:
        _, late = await asyncio.wait(readers, timeout=PATIENCE_S)
        if late:
            waiting = [c.params.stream_id for c in self.clients if not c.ends]
            raise LawBroken(
                f"{len(late)} requests never ended: {waiting[:5]}, host {self.worker_client.host.stats()}"
            )
        for reader in readers:
            reader.result()
        active = self.worker_client.batch_stats()["streams"]["active"]
        if active:
            raise LawBroken(f"all clients have ended or left, and {active} streams are still counted")

    async def _settle(self) -> None:
        await asyncio.sleep(self.settings.engine.slow_consumer_timeout_s + 5.0)

    # --- laws ------------------------------------------------------------------------------------

    def _dispatched(self, event: BatchEvent) -> None:
        """Without faults requests wait at most for the longest hold and one pause, urgent ones not at all."""
        batching = self.settings.generate_batcher
        if not self.calm:
            return
        longest_ms = batching.max_hold_ms + batching.background_hold_extension_ms
        paused = self.worker_client.batch_stats()["generate"]["backpressure_pauses"] > 0
        allowed_ms = longest_ms + (batching.pause_on_backpressure_ms if paused else 0.0) + 0.01
        if max(event.waits_ms) > allowed_ms:
            self.late.append(f"a request waited {max(event.waits_ms):.2f} ms for its batch")
        urgent = [w for w, name in zip(event.waits_ms, event.priorities, strict=True) if name == "urgent"]
        if max(urgent, default=0.0) > 0.01 and not paused:
            self.late.append(f"an urgent request waited {max(urgent):.2f} ms for its batch")
        self.report.sometimes["a hold"] += max(event.waits_ms) > 0.1

    def _given_up(self, waiting: int, left: int) -> None:
        """In a crash loop no request waits for the next worker process: all fail immediately."""
        self.give_ups += 1
        self.report.sometimes["gave up with requests"] += waiting > 0
        if left:
            self.late.append(f"gave up on the worker, and {left} of {waiting} requests still wait for it")

    def _launched(self) -> None:
        """After `restarts_max` deaths in a row each further attempt follows a give-up."""
        deaths = self.host.stats()["deaths_in_a_row"]
        assert isinstance(deaths, int)
        self.launches_beyond += deaths > self.settings.engine.restarts_max
        if self.launches_beyond > self.give_ups:
            self.late.append(f"{deaths} deaths in a row, and the client has not given up")

    def _check_promptness(self, client: _Client, code: str, now_s: float) -> None:
        if code != "runtime_lost" or client.stalled:
            return
        if not self.lost_s or now_s - self.lost_s[-1] > LOST_ERROR_S_MAX:
            raise LawBroken(f"{client.params.stream_id}: told of the loss too late")

    def _check_laws(self) -> None:
        if self.late:
            raise LawBroken(self.late[0])
        for client in self.clients:
            self._check_client(client)
        self._check_replays()
        self._check_batches()
        self._check_nothing_left()
        self._count_sometimes()

    def _check_client(self, client: _Client) -> None:
        name = client.params.stream_id
        if len(client.ends) != 1:
            raise LawBroken(f"{name}: ended {len(client.ends)} times: {client.ends}")
        tokens = min(client.params.max_tokens or 1, len(client.text) + 1)  # a token is more than a letter
        whole = "".join(token_text(name, index) for index in range(tokens))
        if not whole.startswith(client.text):
            raise LawBroken(f"{name}: its text is not what was generated: {client.text[-60:]!r}")
        if client.ends[0] == "stop" and client.text != whole:
            raise LawBroken(f"{name}: ended well with {len(client.text)} of {len(whole)} characters")
        if client.ends[0] == "stream_timeout":
            raise LawBroken(f"{name}: only the time-out of last resort has ended it")
        self.report.outcomes[client.ends[0]] += 1

    def _check_replays(self) -> None:
        lives: dict[str, list[int]] = {}
        for life, stream_id in self.launcher.record.taken:
            lives.setdefault(stream_id, []).append(life)
        for stream_id, taken in lives.items():
            if len(taken) > 2 or len(set(taken)) != len(taken):
                raise LawBroken(f"{stream_id}: begun in lives {taken}")
            heard = self.launcher.record.heard.get(stream_id)
            if heard is not None and heard < taken[-1]:
                raise LawBroken(f"{stream_id}: begun anew after text of life {heard} had come")
            self.report.sometimes["a replay"] += len(taken) == 2

    def _check_batches(self) -> None:
        largest = self.settings.generate_batcher.max_batch_size
        for batch in self.launcher.record.batches:
            kinds = {(params.model_id, params.draft_model, params.guidance_mode) for params in batch}
            if len(batch) > largest or len(kinds) != 1:
                raise LawBroken(f"a batch of {len(batch)} with {len(kinds)} kinds")
            self.report.sometimes["a batch of several"] += len(batch) > 1
        if self.launcher.record.batches and not self.odds.batching:
            raise LawBroken("batch_generate was called, and the worker does not know it")

    def _check_nothing_left(self) -> None:
        stats = self.worker_client.batch_stats()
        streams, batcher = stats["streams"], stats["generate"]
        if streams["active"] or streams["running"] or batcher["total_queued"]:
            raise LawBroken(f"left over: {streams['active']} streams, {batcher['total_queued']} queued")
        if sum(streams["ended"].values()) != streams["opened"]:
            raise LawBroken(f"{streams['opened']} streams opened, ends {streams['ended']}")
        allowed = self.settings.engine.stream_buffer_bytes + 256
        if streams["unread_bytes_max"] > allowed:
            raise LawBroken(f"{streams['unread_bytes_max']} bytes were kept for one reader")
        if stats["runtime"]["deaths_in_a_row"] > self.settings.engine.restarts_max + 1:
            raise LawBroken(f"{stats['runtime']['deaths_in_a_row']} deaths in a row, and still no end")
        alive = [child for child in self.launcher.record.lives if not child.dead]
        if len(alive) > 1:
            raise LawBroken(f"{len(alive)} workers live at once")
        for child in alive:
            if child.busy_with:
                raise LawBroken(f"the worker works without a client: {child.busy_with}")

    def _count_sometimes(self) -> None:
        stats = self.worker_client.batch_stats()
        for law, seen in (
            ("a slow reader dropped", stats["streams"]["slow_drops"]),
            ("a blocked stream", stats["streams"]["blocked"]),
            ("a stale frame", stats["streams"]["stale_frames"]),
            ("a stale reply", stats["transport"]["stale_replies"]),
            ("a call timed out", stats["transport"]["timeouts"]),
            ("a hang", stats["runtime"]["hangs"]),
            ("gave up", stats["runtime"]["state"] == "crash loop"),
            ("background rode along", stats["generate"]["promoted_background"]),
            ("a fallback", stats["generate"]["fallback_count"]),
            ("refused: too many streams", stats["streams"]["refused"]),
        ):
            self.report.sometimes[law] += int(seen)


class _WatchedClient(RpcClient):
    """Records when it learns of a worker's death, and the fate of its requests when it gives up."""

    losses_s: list[float]
    given_up: Callable[[int, int], None]

    def worker_failed(self, error: StrettoError) -> None:
        waiting = self._traffic.open
        super().worker_failed(error)
        self.given_up(waiting, self._traffic.open)

    def worker_lost(self) -> None:
        self.losses_s.append(asyncio.get_running_loop().time())
        super().worker_lost()


def _wind_up(loop: VirtualLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_later(0.1, loop.stop)
    loop.run_forever()
    loop.close()
