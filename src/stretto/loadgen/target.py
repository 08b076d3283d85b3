"""The server under test: its address, model and tokenizer, queried before the measurement."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from stretto.errors import BenchError, one_line
from stretto.loadgen.plan import Api, Target
from stretto.loadgen.words import Count

ASK_TIMEOUT_S = 30.0
# Request shapes of /tokenize: Stretto and llama-server, vLLM.
_SHAPES = ("content", "prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int
    tls: bool
    path: str


def parse_url(url: str) -> Address:
    """`http://host:port`, optionally with a path prefix before `/v1`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
        raise BenchError(f"{url!r} is not the address of a server", hint="write http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host=parts.hostname, port=port or (443 if tls else 80), tls=tls, path=path)


def find_target(
    url: str,
    *,
    api: Api = "chat",
    model: str = "",
    key: str = "",
    tenant_keys: Mapping[str, str] | None = None,
    tenant_header: str = "",
    body: Mapping[str, Any] | None = None,
    timeout_s: float = 600.0,
) -> Target:
    """The server at a URL, with its first model if none is named."""
    at = parse_url(url)
    first_key = key or next(iter((tenant_keys or {}).values()), "")
    target = Target(
        host=at.host,
        port=at.port,
        tls=at.tls,
        path=at.path,
        api=api,
        model=model,
        key=first_key,
        tenant_keys=dict(tenant_keys or {}),
        tenant_header=tenant_header,
        body=dict(body or {}),
        timeout_s=timeout_s,
    )
    if model:
        return target
    status, reply = ask(target, "GET", "/v1/models")
    models = reply.get("data") if status == 200 and isinstance(reply, dict) else None
    if not models:
        raise BenchError(f"{target.url}/v1/models answered {status}", hint="name the model with --model")
    import msgspec

    return msgspec.structs.replace(target, model=str(models[0]["id"]))


def ask(target: Target, method: str, route: str, body: Any = None) -> tuple[int, Any]:
    """One small call: status, and the body as JSON, or as text if it is not JSON."""
    kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=ASK_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    if target.key:
        headers["Authorization"] = f"Bearer {target.key}"
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, target.path + route, body=sent, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        status = answer.status
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(
            f"{target.url} does not answer: {one_line(str(error))}", hint="start the server, or check the URL"
        ) from None
    finally:
        connection.close()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode("utf-8", "replace")


def counter(target: Target) -> Count | None:
    """Counts tokens with the server's `/tokenize`, or None if it has none that we support."""
    for shape in _SHAPES:
        if _counted(target, shape, "one two three") is not None:
            return lambda text, shape=shape: _counted(target, shape, text) or 0  # type: ignore[misc]
    return None


def _counted(target: Target, shape: str, text: str) -> int | None:
    extra = {"model": target.model, "add_special_tokens": False} if shape == "prompt" else {}
    status, reply = ask(target, "POST", "/tokenize", {shape: text, **extra})
    if status != 200 or not isinstance(reply, dict) or not isinstance(reply.get("tokens"), list):
        return None
    return len(cast("list[Any]", reply["tokens"]))
