"""The requests to send, as values passed to the client processes.

A `User` sends its shots one after the other (closed loop). Many users with one shot each at given times form
an open loop. A `Gate` starts or stops a user when other requests have reached a given point.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

Api = Literal["chat", "completions"]


class Gate(Struct, frozen=True, kw_only=True):
    """Opens when `requests` requests of a group have received `tokens` chunks of text each, or have ended."""

    group: str
    requests: int = 1
    tokens: int = 0  # 0: they have ended
    then_s: float = 0.0


class Shot(Struct, frozen=True, kw_only=True):
    """One request. `messages` are appended to the conversation, if its user has one."""

    id: str
    messages: list[dict[str, str]]
    max_tokens: int
    group: str = "all"
    tenant: str = ""
    priority: str = ""
    think_s: float = 0.0  # pause after the previous answer


class User(Struct, frozen=True, kw_only=True):
    """Shots one after the other, from `start_s` after the run's start or after its gate."""

    shots: list[Shot]
    start_s: float = 0.0
    begin: Gate | None = None
    until: Gate | None = None  # send nothing more once it opens
    stop: Gate | None = None  # also abort running requests once it opens
    converses: bool = False  # each shot includes the previous ones and their answers

    @property
    def gates(self) -> list[Gate]:
        return [gate for gate in (self.begin, self.until, self.stop) if gate is not None]


class Target(Struct, frozen=True, kw_only=True):
    """Address, and fields of every request."""

    host: str
    port: int
    tls: bool = False
    path: str = ""  # prefix before /v1
    api: Api = "chat"
    model: str = ""
    key: str = ""
    tenant_keys: dict[str, str] = field(default_factory=dict)
    tenant_header: str = ""
    body: dict[str, Any] = field(default_factory=dict)  # overrides the default fields
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{name}:{self.port}{self.path}"


class LoadPlan(Struct, frozen=True, kw_only=True):
    """A workload, ready to be sent."""

    workload: str
    run_id: str
    users: list[User]
    shape: dict[str, Any] = field(default_factory=dict)  # the sizes it was made from
    quiet: list[str] = field(default_factory=list)  # warm-up groups, not measured

    @property
    def requests(self) -> int:
        return sum(len(user.shots) for user in self.users)

    @property
    def gated(self) -> bool:
        """Whether users wait for each other, which requires one process."""
        return any(user.gates for user in self.users)
