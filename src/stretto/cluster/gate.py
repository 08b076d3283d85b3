"""Gate: a Ray Serve deployment with our whole HTTP server and no weights.

It listens on its own port, which the gates of one machine share, and not behind Ray's proxy: bytes of replies
go from here to the client, and tokens come from the replicas' workers over `rpc.peers`. Ray places gates,
restarts them, and tells them which replicas exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from stretto.cluster.client import ClusterClient
from stretto.cluster.exchange import ActorPermits, shared_counters
from stretto.cluster.key_permits import GateKeyCounts
from stretto.cluster.options import RayOptions, read_options
from stretto.cluster.route_table import table_of
from stretto.cluster.targets import ReplicaTarget
from stretto.errors import NotReadyError
from stretto.rpc.connection import Connection
from stretto.rpc.peers import connect_peer
from stretto.server.run import bind, check, make_server, url_of
from stretto.telemetry import logs
from stretto.telemetry.traces import make_tracer
from stretto.text_client.client import TextClient

LISTEN_WITHIN_S = 15.0  # without a replica: then /readyz says why
CHECK_S = 0.02
SWITCH_S = 0.0005  # a request goes to Ray's router thread and back: 5 ms each with Python's default


class ClusterGate:
    """The class that Ray instantiates. `replicas`: the handle of the Replica deployment."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, replicas: Any, options: Mapping[str, Any]
    ) -> None:
        from stretto.cluster.router_adapter import RayChooser

        self._options = read_options(options)
        settings = self._options.loaded()
        logs.set_up(json_lines=True, level=settings.server.log_level)
        sys.setswitchinterval(SWITCH_S)
        keys = check(settings.server)
        self._bound = bind(settings.server, shared=True, listen=False)
        self._chooser = RayChooser(replicas, table_of(self._options.name))
        cluster = ClusterClient(
            self._chooser,
            Dialling(self._options),
            settings,
            secret=self._options.secret,
            empty_is_ready=self._options.replicas == 0,
        )
        here = settings.server.text_in != "worker"  # also of llama.cpp's models: gates have the time
        table_of(self._options.name).digests = here
        self._client = TextClient(cluster, text_in="api" if here else "worker")
        self._tracer = make_tracer(settings.server.traces)
        loop = asyncio.get_running_loop()
        self._permits = await self._shared_permits() if keys.limited else None
        counts = GateKeyCounts(self._permits, self._options.gates) if self._permits is not None else None
        self._server = make_server(
            self._client,
            settings.server,
            keys=keys,
            tracer=self._tracer,
            running=counts,
        )
        self._repeating = loop.create_task(counts.repeat()) if counts is not None else None
        self._serving = loop.create_task(self._serve())
        self._looking = loop.create_task(self._look_for_replicas())

    async def _shared_permits(self) -> ActorPermits:
        """Key limits hold for all gates together: one actor counts."""
        from ray import serve

        name = serve.get_replica_context().replica_id.unique_id
        actor = await asyncio.to_thread(shared_counters, self._options.name)
        return ActorPermits(actor, name, self._options.gates)

    async def _serve(self) -> None:
        """Listen when a replica is connected: gates share the port, and another one can answer until then."""
        await self._client.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_WITHIN_S):
                while not self._client.health.ready:
                    await asyncio.sleep(CHECK_S)
        await self._server.live(self._bound, None)

    async def _look_for_replicas(self) -> None:
        """Starts Ray's router, which then tells about every replica that comes."""
        await self._chooser.any()

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"url": url_of(self._bound)}

    async def url(self) -> str:
        """Where this gate listens."""
        return url_of(self._bound)

    async def check_health(self) -> None:
        if self._serving.done():
            raise NotReadyError("the HTTP server of this gate has ended")

    async def __del__(self) -> None:
        """Ray's graceful stop: refuse new requests, finish running ones."""
        if not hasattr(self, "_serving"):
            return
        self._looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._server.stop()
        self._serving.cancel()  # it may still wait for a replica
        if self._repeating is not None and self._permits is not None:
            self._repeating.cancel()
            self._permits.left()
        self._bound.close()
        await self._client.close()
        self._tracer.close()


class Dialling:
    """Connects to a replica's worker, with the token that it announced or the cluster's own."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    async def __call__(self, target: ReplicaTarget) -> Connection:
        return await connect_peer(target.host, target.port, self._options.access(target.token))
