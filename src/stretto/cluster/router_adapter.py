"""Between Ray Serve and the policies: a request router, an autoscaling policy, and a chooser over both.

Ray's router only picks: the gate talks to the replica itself, so no slot is reserved and no call is made
through Ray for a request. Ray pickles this module by value: a gate's `PolicyRouter` is a copy, and so would
be every class that is defined here. `RouteCall`, which both sides of the handle use, is therefore elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import RequestRouter

from stretto.cluster.policy.routing import RouteHint, RoutingPolicy
from stretto.cluster.reporting import from_stats
from stretto.cluster.route_table import RouteTable, table_of
from stretto.cluster.targets import ReplicaTarget, RouteCall


class PolicyRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Ranks replicas by predicted seconds (`policy.routing`)."""

    def initialize_state(self, *, table: str, gates: int = 1, routing: str = "predicted", **_: Any) -> None:
        import ray

        self._table = table_of(table)
        node = ray.get_runtime_context().get_node_id()
        self._table.configure(RoutingPolicy(gates=gates), node=node, routing=routing)

    def update_replicas(self, replicas: list[Any]) -> None:
        super().update_replicas(replicas)
        targets = [
            ReplicaTarget.of(
                replica.replica_id.unique_id, replica.replica_metadata, node=str(replica.node_id)
            )
            for replica in replicas
            if replica.replica_metadata
        ]
        digests = self._table.digests
        found = [from_stats(one.replica_id.unique_id, one.routing_stats, digests=digests) for one in replicas]
        self._table.update(targets, [report for report in found if report is not None])

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._table.remove(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> Sequence[list[Any]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        call = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if not isinstance(call, RouteCall) or call.hint is None:
            return [candidate_replicas]
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = self._table.rank(call.request_id, call.hint, candidates=by_id, excluded=call.excluded)
        return [[by_id[name]] for name in ranked]


class RayChooser:
    """Implements `Chooser` over the handle of the Replica deployment."""

    def __init__(self, handle: Any, table: RouteTable) -> None:
        self._handle = handle
        self._table = table

    async def choose(self, request_id: str, hint: RouteHint, excluded: frozenset[str]) -> ReplicaTarget:
        return await self._pick(RouteCall(request_id, hint, excluded))

    async def any(self) -> ReplicaTarget:
        """Waits until there is a replica."""
        return await self._pick(RouteCall("", None))

    async def _pick(self, call: RouteCall) -> ReplicaTarget:
        async with self._handle.choose_replica(call, _reserve=False) as selection:
            return ReplicaTarget.of(selection.replica_id, selection.replica_metadata, node=selection.node_id)

    def ended(self, request_id: str) -> None:
        self._table.ended(request_id)

    def targets(self) -> list[ReplicaTarget]:
        return self._table.targets()
