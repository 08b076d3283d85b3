"""Who is calling: what the key says about a request. Put into the scope by `auth`, read by the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.rpc.messages import PriorityName

PRIORITIES: tuple[PriorityName, ...] = ("urgent", "default", "background")  # the most urgent first


@dataclass(frozen=True, slots=True)
class Caller:
    """`tenant` divides caches and shares; `priority_max` is the most urgent class that the key may use.

    `priority_default` is the class of requests that name none.
    """

    name: str = ""
    tenant: str = ""
    priority_max: PriorityName = "urgent"
    priority_default: PriorityName = "default"

    def priority(self, asked: PriorityName | None) -> PriorityName:
        """What was asked for, else the key's own; never above the ceiling."""
        wanted = PRIORITIES.index(asked or self.priority_default)
        return PRIORITIES[max(wanted, PRIORITIES.index(self.priority_max))]


LOCAL = Caller(name="local")  # no keys are set: whoever reaches the loopback address


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller of a request that `auth` has let in."""
    found: Caller = scope.get("state", {}).get("caller") or LOCAL
    return found
