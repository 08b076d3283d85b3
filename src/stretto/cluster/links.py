"""Links: a gate's connections to the workers of all replicas, one client for each.

A link is used until it breaks; then it is forgotten, and its replica is avoided until a new one is up. The
keeper opens links before they are needed, so that no request pays for a connection, and asks each one whether
its worker still answers: a process that hangs, or a machine that is gone, closes no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from stretto.client.rpc_client import RpcClient
from stretto.client.supervisor import WorkerState
from stretto.cluster.merging import merge_counts
from stretto.cluster.targets import ReplicaTarget
from stretto.errors import PeerRefusedError, RuntimeUnavailableError, StrettoError
from stretto.rpc.connection import Connection
from stretto.rpc.messages import Empty
from stretto.settings import Settings

AVOID_S, AVOID_S_MAX = 0.25, 5.0  # after a failure; doubles
KEEP_EVERY_S = 0.1
Connect = Callable[[ReplicaTarget], Awaitable[Connection]]
log = structlog.get_logger("stretto.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """A link on which `silent_max` questions in turn had no answer within `answer_s` is given up."""

    ask_every_s: float = 1.0
    answer_s: float = 3.0
    silent_max: int = 3


@dataclass(slots=True, eq=False)
class Link:
    """One connected replica. `number`: the smallest that was free, for tables that list all slots."""

    target: ReplicaTarget
    client: RpcClient
    number: int
    open: int = 0  # requests that use it
    silent: int = 0  # questions in turn without an answer

    @property
    def alive(self) -> bool:
        return self.client.host.state is WorkerState.UP


@dataclass(slots=True)
class _Avoided:
    failures: int = 0
    until_s: float = 0.0


class Links:
    """`opened` is called with each new link, `lost` when one is forgotten."""

    def __init__(
        self,
        connect: Connect,
        settings: Settings,
        *,
        opened: Callable[[Link], None],
        lost: Callable[[Link], None],
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self.patience = patience
        self._settings = settings
        self._opened = opened
        self._lost = lost
        self._clock = clock
        self._links: dict[str, Link] = {}
        self._opening: dict[str, asyncio.Task[Link]] = {}
        self._avoided: dict[str, _Avoided] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._past: dict[str, Any] = {}  # counts of links that are gone
        self.refused = False  # the last link that failed did so because the peer has another token

    @property
    def alive(self) -> list[Link]:
        return [link for link in self._links.values() if link.alive]

    def avoided(self) -> frozenset[str]:
        """Replicas that could not be reached a moment ago."""
        now_s = self._clock()
        return frozenset(name for name, found in self._avoided.items() if now_s < found.until_s)

    def doubtful(self, targets: Iterable[ReplicaTarget]) -> frozenset[str]:
        """Replicas without a link that answers: the last choice for a request."""
        sound = {name for name, link in self._links.items() if link.alive and not link.silent}
        return frozenset(target.replica_id for target in targets if target.replica_id not in sound)

    async def ask(self, link: Link) -> None:
        """Whether the worker answers. A link that was silent too often is broken here."""
        try:
            async with asyncio.timeout(self.patience.answer_s):
                await link.client.transport.send("runtime/info", Empty())
            link.silent = 0
        except TimeoutError:
            link.silent += 1
            if link.silent >= self.patience.silent_max and self._links.get(link.target.replica_id) is link:
                log.warning("link-silent", replica=link.target.replica_id, open=link.open)
                self.failed(link.target.replica_id)
                self.forget(link.target.replica_id)
        except StrettoError:
            return  # it broke: the next sweep forgets it

    async def to(self, target: ReplicaTarget) -> Link:
        """The link to a replica, opened if there is none. Raises StrettoError if it cannot be reached."""
        link = self._links.get(target.replica_id)
        if link is not None and link.alive:
            return link
        opening = self._opening.get(target.replica_id)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(target))
            self._opening[target.replica_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(target.replica_id, None))
        return await asyncio.shield(opening)

    async def _open(self, target: ReplicaTarget) -> Link:
        try:
            client = RpcClient.over(await self._connect(target), self._settings, owner=False)
            await client.start()
        except (StrettoError, OSError) as error:
            self.failed(target.replica_id)
            self.refused = isinstance(error, PeerRefusedError)
            where = f"{target.host}:{target.port}"
            log.warning("link-failed", replica=target.replica_id, address=where, error=str(error))
            raise RuntimeUnavailableError(f"replica {target.replica_id} cannot be reached: {error}") from None
        self.forget(target.replica_id)
        taken = {link.number for link in self._links.values()}
        link = Link(target, client, next(n for n in range(len(taken) + 1) if n not in taken))
        self._links[target.replica_id] = link
        self._avoided.pop(target.replica_id, None)
        self.refused = False
        self._opened(link)
        log.info("link-opened", replica=target.replica_id, host=target.host, port=target.port)
        return link

    def failed(self, replica_id: str) -> None:
        """Avoid the replica for a moment, longer each time."""
        found = self._avoided.setdefault(replica_id, _Avoided())
        found.until_s = self._clock() + min(AVOID_S * 2.0**found.failures, AVOID_S_MAX)
        found.failures += 1

    def forget(self, replica_id: str) -> None:
        """Close the link of a replica, if there is one."""
        link = self._links.pop(replica_id, None)
        if link is None:
            return
        self._past = merge_counts([self._past, link.client.batch_stats()])
        self._lost(link)
        task = asyncio.get_running_loop().create_task(link.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def sweep(self, targets: Iterable[ReplicaTarget]) -> list[ReplicaTarget]:
        """Forget links that broke and replicas that left. Returns replicas that need a link now."""
        wanted = {target.replica_id: target for target in targets}
        for replica_id, link in list(self._links.items()):
            if not link.alive:
                self.failed(replica_id)
                self.forget(replica_id)
            elif replica_id not in wanted and not link.open:
                self.forget(replica_id)
        for replica_id in [name for name in self._avoided if name not in wanted]:
            del self._avoided[replica_id]
        avoided = self.avoided()
        missing = [name for name in wanted if name not in self._links and name not in self._opening]
        return [wanted[name] for name in missing if name not in avoided]

    def counts(self) -> dict[str, Any]:
        """`batch_stats` of all links, those that are gone included."""
        return merge_counts([self._past, *(link.client.batch_stats() for link in self._links.values())])

    async def close(self) -> None:
        for task in list(self._opening.values()):
            task.cancel()
        for replica_id in list(self._links):
            self.forget(replica_id)
        await asyncio.gather(*self._closing, return_exceptions=True)


class Keeper:
    """Keeps a link to every replica that exists."""

    def __init__(self, links: Links, targets: Callable[[], list[ReplicaTarget]]) -> None:
        self._links = links
        self._targets = targets
        self._task: asyncio.Task[None] | None = None
        self._tries: set[asyncio.Task[None]] = set()
        self._asked: set[Link] = set()

    def start(self) -> None:
        if self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="links")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, *self._tries) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            for target in self._links.sweep(self._targets()):
                self._start(self._try(target))
            for link in self._links.alive:
                if link not in self._asked:
                    self._asked.add(link)
                    self._start(self._ask(link))
            await asyncio.sleep(KEEP_EVERY_S)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tries.add(task)
        task.add_done_callback(self._tries.discard)

    async def _ask(self, link: Link) -> None:
        """For as long as it is up."""
        while link.alive:
            await self._links.ask(link)
            await asyncio.sleep(self._links.patience.ask_every_s)
        self._asked.discard(link)

    async def _try(self, target: ReplicaTarget) -> None:
        with contextlib.suppress(StrettoError):
            await self._links.to(target)
