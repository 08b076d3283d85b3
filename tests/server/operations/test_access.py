"""Authentication, hosts, origins and size limits, on every route over real sockets."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stretto.server.dashboard.assets import PAGE_PATHS
from stretto.server.http.caller import Caller
from stretto.server.http.keys import Key, KeyRing, _digest
from tests.server import scripted
from tests.server.operations.serving import CHAT, Running, served

GOOD, OTHER = "sk-good-key-1", "sk-other-key-2"
# The page's files are static: the data that they show needs a key.
PUBLIC = {"/livez", "/readyz", "/health"} | PAGE_PATHS


def ring() -> KeyRing:
    return KeyRing(
        [
            Key(_digest(GOOD), Caller(name="good", tenant="acme", priority_max="default")),
            Key(_digest(OTHER), Caller(name="other", tenant="other"), concurrency_max=1),
        ]
    )


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with served(keys=ring()) as running:
        yield running


@pytest.fixture(scope="module")
def local() -> Iterator[Running]:
    with served(cors_origins=["https://app.example.org"], allowed_hosts=["models.lan"]) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def routes(running: Running) -> list[tuple[str, str]]:
    """Every method and path that the application knows, parameters filled in."""
    found = []
    for route in running.server.config.app.api.routes:  # type: ignore[union-attr]
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            path = str(getattr(route, "path", "/"))
            found.append((method, path.replace("{model_id:path}", "m").replace("{model_id}", "m")))
    assert len(found) > 10
    return found


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_route_without_a_key_with_a_wrong_one_and_with_a_right_one(keyed: Running) -> None:
    client = keyed.client()
    for method, path in routes(keyed):
        public = path in PUBLIC and method in ("GET", "HEAD")
        without = client.request(method, path)
        assert (without.status_code == 401) != public, (method, path, without.status_code)
        wrong = client.request(method, path, headers=bearer("sk-wrong"))
        assert wrong.status_code == 401, (method, path)
        right = client.request(method, path, headers=bearer(GOOD))
        assert right.status_code not in (401, 403), (method, path)


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1/nothing", "//livez", "/livez/", "/LIVEZ", "/livez/../metrics", "/%6cives"]
)
def test_unknown_paths_require_a_key(keyed: Running, path: str) -> None:
    assert raw(keyed, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 401"
    )


def test_a_probe_with_a_wrong_key_is_refused(keyed: Running) -> None:
    assert keyed.client().get("/livez", headers=bearer("sk-wrong")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        bearer(GOOD),
        {"authorization": f"bearer   {GOOD}"},
        {"x-api-key": GOOD},
        {"authorization": "Basic " + base64.b64encode(f"anyone:{GOOD}".encode()).decode()},
    ],
)
def test_the_ways_to_send_a_key(keyed: Running, headers: dict[str, str]) -> None:
    assert keyed.client().get("/version", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        f"Token {GOOD}",
        f"Bearer {GOOD[:-1]}",
        f"Bearer {GOOD}x",
        "Basic ???",
        "Basic Zm9v",
        f"Bearer {GOOD.upper()}",
    ],
)
def test_invalid_keys(keyed: Running, value: str) -> None:
    reply = keyed.client().get("/version", headers={"authorization": value})
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert reply.headers["x-request-id"]


def test_a_browser_is_asked_for_a_password(keyed: Running) -> None:
    reply = keyed.client().get("/slots", headers={"accept": "text/html,*/*"})
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, 'Basic realm="stretto"')


def test_anthropics_clients_get_their_own_shape(keyed: Running) -> None:
    body = keyed.client().post("/v1/messages", json={}).json()
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


def test_probes_return_only_a_status_without_a_key(keyed: Running) -> None:
    client = keyed.client()
    assert client.get("/health").json() == client.get("/readyz").json() == {"status": "ready"}
    assert "version" in client.get("/health", headers=bearer(GOOD)).json()


def test_the_keys_tenant_and_priority_limit_reach_the_worker_client(keyed: Running) -> None:
    reply = keyed.client().post(
        "/v1/chat/completions", json={**CHAT, "priority": "urgent"}, headers=bearer(GOOD)
    )
    assert reply.status_code == 200, reply.text
    seen = keyed.worker_client.seen[-1]
    assert (seen.tenant, seen.priority) == ("acme", "default")


def test_a_keys_share_of_concurrent_work(keyed: Running) -> None:
    client, headers = keyed.client(), bearer(OTHER)
    long = {**CHAT, "max_tokens": 400, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=long, headers=headers) as reply:
        lines = reply.iter_lines()  # held: a generator that is dropped closes the reply
        next(lines)
        refused = client.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency_limit")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/version", headers=headers).status_code == 200
        own, foreign = (client.get("/slots", headers=bearer(key)).json()[0] for key in (OTHER, GOOD))
        assert own["tenant"] == "other"
        assert own["stream_id"]
        assert (foreign["state"], foreign["tenant"], foreign["stream_id"]) == ("generating", "", "")
        assert client.post("/v1/chat/completions", json=CHAT, headers=bearer(GOOD)).status_code == 200
    wait_until(lambda: not keyed.worker_client.running)
    assert client.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200


def wait_until(true: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# ── Host and Origin ──────────────────────────────────────────────────────────────────────────────

HOSTS = {
    "localhost": 200,
    "localhost:1234": 200,
    "LOCALHOST": 200,
    "127.0.0.1": 200,
    "127.0.0.1:80": 200,
    "127.9.9.9": 200,
    "[::1]": 200,
    "[::1]:8000": 200,
    "models.lan": 200,
    "models.lan:9": 200,
    "evil.example": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "0.0.0.0": 403,
    "169.254.169.254": 403,
    "[::ffff:10.0.0.1]": 403,
    "localhost:evil": 403,
    "localhost@evil.example": 403,
    "localhost/": 403,
    "localhost evil": 403,
    "": 403,
}
ORIGINS = {
    None: 200,
    "http://localhost": 200,
    "https://localhost": 200,
    "http://localhost:80": 200,
    "https://app.example.org": 200,
    "HTTPS://APP.EXAMPLE.ORG": 200,
    "http://localhost:3000": 403,
    "http://127.0.0.1": 403,
    "http://app.example.org": 403,
    "https://app.example.org.evil.example": 403,
    "https://evil.example": 403,
    "http://evil.example": 403,
    "null": 403,
    "": 403,
    "file://": 403,
    "chrome-extension://abc": 403,
    "http://localhost@evil.example": 403,
    "localhost": 403,
    "*": 403,
    "https://app.example.org:444": 403,
}


def raw(running: Running, request: str) -> bytes:
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request.encode("latin-1"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_there_are_forty_pairs() -> None:
    assert len(HOSTS) + len(ORIGINS) >= 40


@pytest.mark.parametrize("host", HOSTS)
def test_hosts(local: Running, host: str) -> None:
    reply = raw(local, f"GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    assert int(reply.split()[1]) in ({200} if HOSTS[host] == 200 else {400, 403}), reply


def test_a_request_without_a_host_or_with_two_is_refused(local: Running) -> None:
    assert raw(local, "GET /version HTTP/1.1\r\nConnection: close\r\n\r\n").split()[1] in (b"400", b"403")
    two = "GET /version HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(local, two).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("origin", ORIGINS)
def test_origins(local: Running, origin: str | None, method: str) -> None:
    headers = {"host": "localhost"} | ({} if origin is None else {"origin": origin})
    reply = local.client().request(method, "/version", headers=headers)
    assert (reply.status_code == 403) == (ORIGINS[origin] == 403)
    if ORIGINS[origin] == 403:
        assert reply.json()["error"]["code"] == "origin_refused"
        assert "access-control-allow-origin" not in reply.headers


def test_pages_that_are_allowed_get_cors_headers(local: Running) -> None:
    origin = {"origin": "https://app.example.org"}
    client = local.client()
    ask = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-thing",
    }
    preflight = client.options("/v1/chat/completions", headers=origin | ask)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.org"
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    refused = client.post("/v1/chat/completions", content=b"[" * 1000, headers=origin)
    assert refused.status_code == 400
    assert refused.headers["access-control-allow-origin"] == "https://app.example.org"
    for reply in (preflight, refused):
        assert "access-control-allow-credentials" not in reply.headers


def test_a_form_of_another_site_is_refused_without_an_origin_too(local: Running) -> None:
    reply = local.client().post("/v1/chat/completions", json=CHAT, headers={"sec-fetch-site": "cross-site"})
    assert reply.status_code == 403


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_a_body_that_is_too_large(local: Running) -> None:
    client = local.client()
    announced = client.post("/v1/chat/completions", content=b" " * (16 << 20) + b"1")
    assert (announced.status_code, announced.json()["error"]["code"]) == (413, "body_too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(320):
            yield b" " * (1 << 16)

    try:
        chunked = client.post("/v1/chat/completions", content=endless())
        assert chunked.status_code == 413
    except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        pass  # cut off while it was still sending: refused as well


@pytest.mark.parametrize("body", [b"[" * 65 + b"]" * 65, b'{"a":' * 100_000, b"[" * 1_000_000])
def test_a_body_that_nests_too_deep(local: Running, body: bytes) -> None:
    reply = local.client().post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_json"


def test_brackets_in_a_string_are_text(local: Running) -> None:
    message = {"role": "user", "content": '[[{"' * 200}
    assert (
        local.client().post("/v1/chat/completions", json={**CHAT, "messages": [message]}).status_code == 200
    )


def test_too_many_headers_and_too_long_ones(local: Running) -> None:
    client = local.client()
    many = client.get("/version", headers={f"x-{index}": "1" for index in range(120)})
    assert many.status_code == 431
    long = client.get("/version", headers={"x-long": "a" * 33_000})
    assert (long.status_code, long.json()["error"]["code"]) == (431, "headers_too_large")
    assert client.get("/version?" + "a" * 9_000).status_code == 414


def test_a_head_that_never_ends_is_cut(local: Running) -> None:
    host, port = local.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nx-long: ")
        received = b""
        try:
            for _ in range(200):
                connection.sendall(b"a" * 4096)
            received = connection.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            assert received.startswith(b"HTTP/1.1 431")


def test_a_client_that_sends_slowly_is_given_up() -> None:
    with served(read_timeout_s=0.5) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: loc")
            assert connection.recv(10) == b""  # closed, nothing said
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_errors_tell_nothing_about_the_machine(local: Running) -> None:
    for path in ("/nothing", "/v1/models/none"):
        text = local.client().get(path).text
        assert "Traceback" not in text
        assert "/work" not in text
        assert "0x" not in text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [97]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": [97, 98], "echo": True, "max_tokens": 1}),
    ],
)
def test_token_calls_carry_the_tenant_of_their_key(path: str, body: dict[str, Any]) -> None:
    with served(scripted.ScriptedClient, keys=ring()) as running:
        reply = running.client().post(path, json=body, headers=bearer(GOOD))
        assert reply.status_code == 200, reply.text
        assert {asked.tenant for asked in running.worker_client.asked} == {"acme"}
