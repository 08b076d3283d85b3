"""What a cluster is started with: made by `stretto cluster serve`, or `args` of a Serve config YAML."""

from __future__ import annotations

import difflib
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import field

from stretto.cluster.policy.scaling import ScalingPolicy
from stretto.errors import SettingsError
from stretto.rpc.peers import PeerAccess
from stretto.rpc.sockets import TOKEN_BYTES, read_token
from stretto.settings import Settings, load

REPLICAS_MAX = 64
GATES_MAX = 64


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`settings` are settings by dotted names, e.g. {"n_seq_max": 8, "server.port": 8000}; `config` is a
    settings file that every machine has at the same path.

    `routing`: by predicted seconds; random and two (the emptier of two at random) are there to compare with.
    `replicas_max` above `replicas` turns autoscaling on; `scaling` are the fields of
    `policy.scaling.ScalingPolicy` except floor and ceiling. `token_file`: the cluster's secret, on every
    machine; without one a secret is made at start, and replicas tell it to gates through Ray's controller.
    """

    name: str = "stretto"
    model: str = ""
    replicas: int = 1
    replicas_max: int = 0
    gates: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    config: str | None = None
    cache_dir: str | None = None
    rpc_host: str = ""  # where replicas listen for gates; default: the machine's address in the Ray cluster
    token_file: str | None = None
    token: str = ""  # made by `with_token`
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_ca_file: str | None = None
    replica_cpus: float = 1.0
    replica_gpus: float = 0.0
    gate_cpus: float = 1.0
    routing: Literal["predicted", "random", "two"] = "predicted"
    scaling: dict[str, float] = field(default_factory=dict)
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= REPLICAS_MAX and not (self.replicas == 0 and self.replicas_max):
            raise SettingsError(
                f"replicas: {self.replicas}", hint=f"1 to {REPLICAS_MAX}, or 0 with replicas_max"
            )
        if self.replicas_max and not max(1, self.replicas) <= self.replicas_max <= REPLICAS_MAX:
            raise SettingsError(
                f"replicas_max: {self.replicas_max}", hint=f"at least replicas, at most {REPLICAS_MAX}"
            )
        if not 1 <= self.gates <= GATES_MAX:
            raise SettingsError(f"gates: {self.gates}", hint=f"1 to {GATES_MAX}")
        self.scaling_policy()

    def scaling_policy(self) -> ScalingPolicy:
        known = {one.name for one in fields(ScalingPolicy)} - {"floor", "ceiling"}
        for name in self.scaling:
            if name not in known:
                raise SettingsError(f"scaling: {name} is not known", hint=_nearest(name, known))
        try:
            ceiling = self.replicas_max or max(1, self.replicas)
            return ScalingPolicy(floor=self.replicas, ceiling=ceiling, **self.scaling)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"scaling: {error}", hint="") from None

    @property
    def autoscales(self) -> bool:
        return self.replicas_max > self.replicas

    def with_token(self) -> RayOptions:
        """With a secret, where no file has one."""
        if self.token_file is not None or self.token:
            return self
        return msgspec.structs.replace(self, token=secrets.token_hex(TOKEN_BYTES))

    def access(self, token: str = "") -> PeerAccess:
        """How gates and replicas reach each other. `token`: as a replica announced it."""
        own = read_token(Path(self.token_file)) if self.token_file is not None else token or self.token
        return PeerAccess(own, self.tls_cert_file, self.tls_key_file, self.tls_ca_file)

    @property
    def secret(self) -> bytes:
        """Keys the names of prefixes (`policy.blocks`): the same for gates and replicas."""
        return hashlib.sha256(b"prefixes" + self.access().token.encode()).digest()

    def loaded(self) -> Settings:
        return load(self.config, flags=self.settings).settings


def read_options(given: Mapping[str, Any]) -> RayOptions:
    """Unknown names and wrong types are errors that name what was meant."""
    known = RayOptions.__struct_fields__
    for name in given:
        if name not in known:
            raise SettingsError(f"{name} is not an option of a cluster", hint=_nearest(name, known))
    try:
        return msgspec.convert(dict(given), RayOptions)
    except msgspec.ValidationError as error:
        raise SettingsError(f"the cluster's options: {error}", hint="") from None


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(sorted(known))}"
