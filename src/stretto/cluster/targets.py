"""What a gate knows of replicas, and how it asks for one: the seam between Ray and the rest of the gate.

`Chooser` is implemented over Ray Serve's router (`cluster.router_adapter`), and in tests over a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stretto.cluster.policy.routing import RouteHint


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """A replica, as its metadata announces it. `token`: of its listener, where the cluster has no own one."""

    replica_id: str
    host: str
    port: int
    token: str = ""
    node: str = ""

    @classmethod
    def of(cls, replica_id: str, metadata: Mapping[str, Any], *, node: str = "") -> ReplicaTarget:
        return cls(
            replica_id,
            str(metadata["host"]),
            int(metadata["port"]),
            str(metadata.get("token", "")),
            node,
        )

    def metadata(self) -> dict[str, Any]:
        """What `of` reads. JSON, because it passes through Ray's controller."""
        return {"host": self.host, "port": self.port, "token": self.token}


class RouteCall(NamedTuple):
    """What a gate hands to `choose_replica`. `hint` None: any replica, e.g. to see whether there is one."""

    request_id: str
    hint: RouteHint | None
    excluded: frozenset[str] = frozenset()


class Chooser(Protocol):
    async def choose(self, request_id: str, hint: RouteHint, excluded: frozenset[str]) -> ReplicaTarget:
        """The replica for a request; waits while there is none. Replicas in `excluded` come last.

        The request counts as sent there until `ended`.
        """

    def ended(self, request_id: str) -> None:
        """The request ended, moved or was cancelled. Unknown ones are ignored."""

    def targets(self) -> list[ReplicaTarget]:
        """All replicas that exist now."""
