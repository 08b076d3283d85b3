"""The caller of a request, derived from its API key. Stored in the scope by `auth`, read by endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.rpc.messages import PriorityName

PRIORITIES: tuple[PriorityName, ...] = ("urgent", "default", "background")  # most urgent first


@dataclass(frozen=True, slots=True)
class Caller:
    """`tenant` separates caches and fair shares; `priority_max` is the most urgent priority the key may use.

    `priority_default` applies to requests without a priority.
    """

    name: str = ""
    tenant: str = ""
    priority_max: PriorityName = "urgent"
    priority_default: PriorityName = "default"

    def priority(self, asked: PriorityName | None) -> PriorityName:
        """The requested priority or the key's default, limited by `priority_max`."""
        wanted = PRIORITIES.index(asked or self.priority_default)
        return PRIORITIES[max(wanted, PRIORITIES.index(self.priority_max))]


LOCAL = Caller(name="local")  # no keys are configured: any local client


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller of an authenticated request."""
    found: Caller = scope.get("state", {}).get("caller") or LOCAL
    return found
