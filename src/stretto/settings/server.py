"""The section `server:`, settings of the HTTP server: address, access, limits, shutdown."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, field_validator

from stretto.settings.values import Bytes, Count, Seconds

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+")


class ServerSettings(BaseModel):
    """The HTTP server. A field is a key below `server:`, a variable (STRETTO_PORT) and a flag of `serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """Address to listen on. Addresses other than 127.0.0.1, ::1 and localhost require an API key."""
    port: Annotated[Count, Field(le=65_535)] = 8000
    """Port to listen on; 0 takes a free one."""

    api_key: SecretStr | None = None
    """API key that every request must send. Not a flag (process lists show flags): set the variable."""
    api_key_file: str | None = None
    """File with keys (mode 0600): one per line, or YAML with tenant, priority and concurrency per key."""
    allowed_hosts: list[str] = []
    """Host names, besides this machine's own, that clients may use for the server."""
    cors_origins: list[str] = []
    """Origins of web pages that may call the server, as https://example.org; "*" only together with keys."""

    body_bytes_max: Annotated[Bytes, Field(ge=1 << 10, le=1 << 30)] = 16 << 20
    """Largest request body. A picture in it takes a third more than its file."""
    media_hosts: list[str] = []
    """Hosts whose pictures may be fetched when a request names an address: images.example.org,
    *.example.org. Default: none; requests send pictures themselves, as data URLs."""
    media_fetch_bytes_max: Annotated[Bytes, Field(ge=1 << 10, le=1 << 30)] = 8 << 20
    """Largest picture that is fetched."""
    media_fetch_timeout_s: Annotated[Seconds, Field(gt=0)] = 10.0
    """Time-out for fetching a picture."""
    header_bytes_max: Annotated[Bytes, Field(ge=1 << 10, le=1 << 20)] = 32 << 10
    """Maximum total size of a request's headers."""
    headers_max: Annotated[Count, Field(ge=8, le=10_000)] = 100
    """Maximum number of header lines of a request."""
    url_bytes_max: Annotated[Bytes, Field(ge=256, le=1 << 20)] = 8 << 10
    """Maximum length of path and query."""
    nesting_max: Annotated[Count, Field(ge=8, le=500)] = 64
    """Maximum nesting depth of JSON in a body."""
    connections_max: Annotated[Count, Field(ge=1, le=1 << 20)] = 4096
    """Maximum open connections. Beyond it, idle ones without a key are closed, or new ones get 503."""
    read_timeout_s: Annotated[Seconds, Field(gt=0)] = 30.0
    """Time-out for a client to send its headers, and again for its body."""
    write_timeout_s: Annotated[Seconds, Field(gt=0)] = 30.0
    """How long a reply may stay unread before the client is dropped and its generation cancelled."""
    keep_alive_s: Annotated[Seconds, Field(gt=0)] = 75.0
    """How long an idle connection stays open."""

    api_processes: Annotated[Count, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    """Processes that serve HTTP on the same socket. auto: one for every four cores, at most 4, for models of
    at least 64 slots whose text is made here (text_in); otherwise 1."""
    text_in: Literal["auto", "worker", "api"] = "auto"
    """Which process makes text of tokens and tokens of text: the worker, or the one that serves HTTP (the
    worker then sees token ids only). auto: api, and the worker for models whose files cannot be read here."""
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    """Unknown request fields: ignore them (and name them in a response header), or respond with 400."""
    ping_interval_s: Annotated[Seconds, Field(gt=0)] = 15.0
    """A stream that is silent for this long gets a comment, which keeps proxies from closing it."""
    first_byte_s: Annotated[Seconds, Field(gt=0)] = 50.0
    """A streamed reply starts with its first token, or with a comment after this long. Until then a rejection
    has its own status and Retry-After: keep it above max_queue_wait_s and below the time-outs of proxies."""
    hang_after_s: Annotated[Seconds, Field(gt=0)] = 60.0
    """Age of a busy model's last tick beyond which the server is not ready."""
    drain_timeout_s: Seconds = 30.0
    """After SIGTERM: how long running requests may take to finish."""

    metrics_compat: Literal["none", "vllm"] = "none"
    """vllm: also export metrics under vLLM's names, for its dashboards."""
    metrics_public: bool = False
    """/metrics needs no API key, for gateways that read it without one. It names models, never prompts."""
    traces: Literal["off", "otlp", "console"] = "off"
    """Where OpenTelemetry spans go; otlp uses the OTEL_* variables. Needs the extra `otel`."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """auto: console in a terminal, JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity of logged lines. Prompts and answers are never logged."""

    @field_serializer("api_key")
    def _masked(self, key: SecretStr | None) -> str | None:
        return None if key is None else "********"

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin[:80]!r} is not an origin such as https://example.org")
        return [origin.lower() for origin in origins]

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, hosts: list[str]) -> list[str]:
        return [host.lower() for host in hosts]

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False
