"""Connections to a real server: every state ends in time, and none holds more than it may."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from stretto.server.http.connection import BEHIND_BYTES_MAX, LINGER_S
from stretto.server.http.crowd import RESERVE
from tests.server.operations.raw import GET, chat, dial, head_of, post, rest, seconds_to_close, until
from tests.server.operations.scripted import ScriptedClient
from tests.server.operations.serving import CHAT, Running, served

KEY = "sk-a-key-of-a-test"
AUTHORIZED = f"authorization: Bearer {KEY}"
OWED = [
    b"GET /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\n\r\nx",
    b"GET /livez HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n"
    + AUTHORIZED.encode()
    + b"\r\n\r\n{",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n"
    b"expect: 100-continue\r\n\r\n",
]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with served(api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def slow() -> Iterator[Running]:
    """Four slots, a token each 20 ms."""
    with served(lambda: ScriptedClient(token_s=0.02)) as running:
        yield running


def stop_by_reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


# --- what a connection owes --------------------------------------------------------------------------


@pytest.mark.parametrize("request_bytes", OWED)
def test_a_connection_that_owes_a_body_is_answered_and_closed(keyed: Running, request_bytes: bytes) -> None:
    with dial(keyed, request_bytes) as client:
        reply = rest(client)
    assert head_of(reply)["connection"] == "close"
    assert head_of(reply)[":status"] in ("200", "401", "413")
    # The client has not closed its side: the server's end of it goes, too.
    until(lambda: keyed.call(lambda: len(keyed.server.server_state.connections)) == 0, LINGER_S + 3)


def test_a_refusal_reaches_a_client_that_is_still_sending(keyed: Running) -> None:
    with dial(keyed) as client:
        client.sendall(post("/v1/chat/completions", b"x" * 2_000_000))
        assert head_of(rest(client))[":status"] == "401"


def test_a_small_body_that_no_route_reads_does_not_close_the_connection(keyed: Running) -> None:
    with dial(keyed, GET.replace(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\n{}")) as client:
        assert "connection" not in head_of(client.recv(65536))
        client.sendall(GET)
        assert head_of(client.recv(65536))[":status"] == "200"


def test_a_connection_is_reused_after_a_large_body(slow: Running) -> None:
    large = {**CHAT, "messages": [{"role": "user", "content": "word " * 100_000}]}
    with dial(slow, post("/v1/chat/completions", large)) as client:
        assert head_of(client.recv(65536))[":status"] == "200"
        client.sendall(GET)
        assert head_of(client.recv(65536))[":status"] == "200"


@pytest.mark.parametrize("data", [b"", b"GET /livez HTTP/1.1\r\nhost: lo", GET, GET + GET[:10]])
def test_idle_and_unfinished_connections_are_closed_in_time(data: bytes) -> None:
    with served(read_timeout_s=0.4, keep_alive_s=0.4) as running, dial(running, data) as client:
        assert seconds_to_close(client) < 2.0


# --- too many of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", GET[:20], GET, *OWED[:5]])
def test_unauthenticated_connections_cannot_lock_out_probes_and_keys(first: bytes) -> None:
    with served(api_key=KEY, connections_max=20) as running:
        strangers = [dial(running, first) for _ in range(60)]
        client = running.client(headers={"authorization": f"Bearer {KEY}"})
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert running.call(lambda: len(running.server.server_state.connections)) <= 20 + RESERVE
        for stranger in strangers:
            stranger.close()


def test_idle_connections_with_a_key_are_closed_last() -> None:
    with served(api_key=KEY, connections_max=5) as running:
        authorized = GET.replace(b"\r\n\r\n", f"\r\n{AUTHORIZED}\r\n\r\n".encode())
        caller = dial(running, authorized)
        assert head_of(caller.recv(65536))[":status"] == "200"
        strangers = [dial(running, GET) for _ in range(20)]
        assert [head_of(one.recv(65536))[":status"] for one in strangers[-3:]] == ["200"] * 3
        caller.sendall(authorized)
        assert head_of(caller.recv(65536))[":status"] == "200"
        for one in (caller, *strangers):
            one.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_beyond_the_limit_probes_are_served_and_the_rest_gets_503_json(path: str) -> None:
    with served(lambda: ScriptedClient(token_s=0.05), connections_max=3) as running:
        busy = [dial(running, chat(max_tokens=100)) for _ in range(3)]
        until(lambda: running.call(lambda: len(running.worker_client.running)) == 3)
        with dial(running, GET) as probe:
            reply = rest(probe)
            assert (head_of(reply)[":status"], head_of(reply)["connection"]) == ("200", "close")
        with dial(running, post(path, {**CHAT})) as another:
            reply = rest(another)
        fields = head_of(reply)
        assert (fields[":status"], fields["connection"]) == ("503", "close")
        assert int(fields["retry-after"]) >= 1
        error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "too_many_connections"
        assert error["type"] == (
            "overloaded_error" if path == "/v1/messages" else "service_unavailable_error"
        )
        for one in busy:
            one.close()


def test_callers_with_keys_have_a_reserve_beyond_the_limit() -> None:
    with served(lambda: ScriptedClient(token_s=0.05, slots=8), api_key=KEY, connections_max=3) as running:
        request = post("/v1/chat/completions", {**CHAT, "max_tokens": 100}, AUTHORIZED)
        busy = [dial(running, request) for _ in range(5)]
        until(lambda: running.call(lambda: len(running.worker_client.running)) == 5)
        for one in busy:
            one.close()


# --- pipelining --------------------------------------------------------------------------------------


def test_two_pipelined_requests_are_answered_in_order(keyed: Running) -> None:
    version = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + AUTHORIZED.encode()
    with dial(keyed, GET + version + b"\r\n\r\n") as client:
        reply = rest(client)
    assert reply.count(b"HTTP/1.1 200 OK") == 2
    assert reply.index(b"alive") < reply.index(b"version")


def test_a_request_behind_a_chunked_one_closes_the_connection_after_the_first_reply(slow: Running) -> None:
    body = json.dumps(CHAT).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with dial(slow, chunked + GET) as client:
        reply = rest(client)
    assert (head_of(reply)[":status"], head_of(reply)["connection"]) == ("200", "close")
    assert b"w3" in reply


def test_a_head_in_pieces_of_one_byte_is_one_request(keyed: Running) -> None:
    with dial(keyed) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GET + GET:
            client.sendall(bytes([byte]))
        reply = b""
        while reply.count(b"alive") < 2:
            reply += client.recv(65536)
    assert reply.count(b"HTTP/1.1 200") == 2


def test_a_flood_of_pipelined_requests_is_not_held(slow: Running) -> None:
    with dial(slow, chat(max_tokens=20)) as client:
        client.sendall(GET * (2 * BEHIND_BYTES_MAX // len(GET)))
        until(lambda: not slow.call(lambda: len(slow.worker_client.running)))
        reply = rest(client)
    assert reply.count(b"HTTP/1.1 ") == 1  # the first is answered, then the connection ends
    held = slow.call(lambda: [len(one._behind) for one in slow.server.server_state.connections])
    assert max(held, default=0) <= BEHIND_BYTES_MAX


def test_trailers_without_end_close_the_connection(keyed: Running) -> None:
    head = f"POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{AUTHORIZED}\r\ntransfer-encoding: chunked\r\n\r\n"
    start = head.encode() + b"2\r\n{}\r\n0\r\nx: "
    with dial(keyed, start) as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sendall(b"y" * (64 << 20))


# --- clients that leave or do not read ---------------------------------------------------------------


@pytest.mark.parametrize("behind", [b"", GET, GET[:7], GET * 1000, b"x" * 100_000])
@pytest.mark.parametrize("leave", ["reset", "close", "half-close"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_generation(
    slow: Running, behind: bytes, leave: str, stream: bool
) -> None:
    client = dial(slow, chat(max_tokens=1000, stream=stream) + behind)
    until(lambda: slow.call(lambda: len(slow.worker_client.running)) == 1)
    if leave == "reset":
        stop_by_reset(client)
    elif leave == "close":
        client.close()
    else:
        client.shutdown(socket.SHUT_WR)
    until(lambda: slow.call(lambda: len(slow.worker_client.running)) == 0, 1.0)
    client.close()


def test_a_half_closed_client_still_gets_a_quick_reply(keyed: Running) -> None:
    with dial(keyed) as client:
        client.sendall(GET + GET)
        client.shutdown(socket.SHUT_WR)
        assert rest(client).count(b"HTTP/1.1 200") == 2


def test_a_stream_that_is_not_read_gives_up_its_slot() -> None:
    with served(lambda: ScriptedClient(token_s=0.0), write_timeout_s=0.5) as running:
        clients = [dial(running, chat(max_tokens=100_000, stream=True), receive_bytes=4096) for _ in range(4)]
        until(lambda: running.call(lambda: len(running.worker_client.running)) == 4)
        until(lambda: running.call(lambda: len(running.worker_client.running)) == 0, 10.0)
        for client in clients:
            client.close()


def test_a_reader_that_is_slow_but_reads_is_not_dropped() -> None:
    with served(lambda: ScriptedClient(token_s=0.0), write_timeout_s=0.5) as running:
        with dial(running, chat(max_tokens=4000, stream=True), receive_bytes=4096) as client:
            data = b""
            while b"[DONE]" not in data[-200:]:
                part = client.recv(20_000)
                assert part, "the server dropped a client that reads"
                data += part
        assert data.count(b'"content"') >= 4000


# --- HTTP itself -------------------------------------------------------------------------------------

BAD_HEADS = [
    b"garbage\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET /livez\r\n\r\n",
    b"GET /livez HTTP/3.7\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: a\r\ncontent-length: 1_0\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /livez HTTP/1.1\nhost: a\n\n",
    b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"CONNECT example.org:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("data", BAD_HEADS)
def test_invalid_http_gets_a_json_400_and_is_closed(keyed: Running, data: bytes) -> None:
    with dial(keyed, data) as client:
        reply = rest(client)
    assert head_of(reply)[":status"] in ("400", "401", "403")
    assert head_of(reply)["connection"] == "close"
    assert "error" in json.loads(reply.partition(b"\r\n\r\n")[2])


def test_an_offer_to_speak_another_protocol_is_ignored(slow: Running) -> None:
    """Some clients (Java's for one) offer HTTP/2 with every first request."""
    offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk")
    with dial(slow, post("/v1/chat/completions", CHAT, *offer)) as client:
        assert head_of(client.recv(65536))[":status"] == "200"
        client.sendall(GET)
        assert head_of(client.recv(65536))[":status"] == "200"


def test_a_body_waits_for_100_continue_where_the_client_asks(slow: Running) -> None:
    request = post("/v1/chat/completions", CHAT, "expect: 100-continue")
    head, body = request.split(b"\r\n\r\n", 1)
    with dial(slow, head + b"\r\n\r\n") as client:
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert head_of(client.recv(65536))[":status"] == "200"


def test_http_1_0_streams_end_with_the_connection(slow: Running) -> None:
    request = chat(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with dial(slow, request) as client:
        reply = rest(client)
    assert "transfer-encoding" not in head_of(reply)
    assert reply.endswith(b"data: [DONE]\n\n")
