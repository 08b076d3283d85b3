"""Measures the generate batcher through the server: n clients send a request each within about 1 ms.

`stretto serve --backend simulated` with default settings; the clients are raw sockets of one process, opened
beforehand. Calls, and the time from enqueue to dispatch, are the server's own figures (/health), which cover
the last 100 calls: every pass sends more calls of one size than that before it reads them.
"""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import time
from typing import Any

from benchmarks.server_process import ServerProcess
from benchmarks.sse_client import request_bytes

SIZES = (1, 8, 16, 64)
WINDOW = 100  # calls covered by the server's percentiles
SAVED_BARS = {8: 0.86, 16: 0.90, 64: 0.90}
WAIT_MS_BAR = 4.0
LONE_WAIT_MS_BAR = 0.5
Row = tuple[str, float, str, float]  # what, measured, relation, bar
_END = b"0\r\n\r\n"  # end of a chunked reply


class RawClients:
    """Kept-alive connections. In a round all write, then all read their reply to the end."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._sockets = [socket.create_connection(address) for _ in range(count)]
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = {
            "model": "simulated",
            "messages": [{"role": "user", "content": "Name three rivers of Europe."}],
            "max_tokens": 2,
            "stream": True,
        }
        self._request = request_bytes(address[0], body)

    def round(self) -> float:
        """Runs a round; returns the seconds that writing took."""
        started_s = time.perf_counter()
        for one in self._sockets:
            one.sendall(self._request)
        wrote_s = time.perf_counter() - started_s
        self._read()
        return wrote_s

    def _read(self) -> None:
        with selectors.DefaultSelector() as waiting:
            for one in self._sockets:
                waiting.register(one, selectors.EVENT_READ, bytearray())
            while waiting.get_map():
                for key, _ in waiting.select(30.0):
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    key.data.extend(data)
                    if key.data.endswith(_END) or not data:
                        assert key.data.startswith(b"HTTP/1.1 200"), bytes(key.data[:200])
                        waiting.unregister(key.fileobj)

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def batcher_stats(address: tuple[str, int]) -> dict[str, Any]:
    with socket.create_connection(address) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        data = b"".join(iter(lambda: one.recv(1 << 16), b""))
    found: dict[str, Any] = json.loads(data.partition(b"\r\n\r\n")[2])["batcher"]["generate"]
    return found


def one_pass(address: tuple[str, int], count: int, gap_s: float = 0.01) -> dict[str, float]:
    """Runs rounds until they fill the server's window of calls."""
    clients = RawClients(address, count)
    try:
        for _ in range(3):
            clients.round()
        before = batcher_stats(address)
        wrote_s = []
        while (after := batcher_stats(address))["total_batches"] - before["total_batches"] < WINDOW:
            for _ in range(25):
                wrote_s.append(clients.round())
                time.sleep(gap_s)
    finally:
        clients.close()
    calls = after["total_batches"] - before["total_batches"]
    requests = after["total_requests"] - before["total_requests"]
    return {
        "saved": 1.0 - calls / requests,
        "wait_p50_ms": after["queue_wait_ms"]["p50"],
        "wait_p95_ms": after["queue_wait_ms"]["p95"],
        "wrote_ms": statistics.median(wrote_s) * 1000,
    }


def measure_http(passes: int) -> dict[str, Any]:
    """All sizes alternately, several times: each figure with the minimum and maximum of its passes."""
    rows: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    with ServerProcess("--backend", "simulated") as server:
        for _ in range(passes):
            for size in SIZES:
                rows[size].append(one_pass(server.address, size))
    return {"http": {str(size): _spread(found) for size, found in rows.items()}}


def _spread(passes: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "median": statistics.median(one[name] for one in passes),
            "min": min(one[name] for one in passes),
            "max": max(one[name] for one in passes),
        }
        for name in passes[0]
    }


def http_bars(found: dict[str, Any]) -> list[Row]:
    """Medians of the passes."""
    http = found["http"]
    rows: list[Row] = [
        (f"HTTP: calls saved, {size} concurrent", http[str(size)]["saved"]["median"], ">=", bar)
        for size, bar in SAVED_BARS.items()
    ]
    rows += [
        (f"HTTP: added wait p95 at {size}, ms", http[str(size)]["wait_p95_ms"]["median"], "<=", WAIT_MS_BAR)
        for size in SAVED_BARS
    ]
    lone = http["1"]["wait_p95_ms"]["median"]
    rows.append(("HTTP: added wait p95 of a lone request, ms", lone, "<=", LONE_WAIT_MS_BAR))
    shortest = min(row["wait_p95_ms"]["min"] for row in http.values())
    return [*rows, ("HTTP: shortest wait measured, ms", shortest, ">=", 0.001)]  # 0: not measured


def http_lines(found: dict[str, Any]) -> list[str]:
    return [
        f"over HTTP, {size:>2} concurrent: "
        + ", ".join(
            f"{name} {row[name]['median']:.3f} ({row[name]['min']:.3f} to {row[name]['max']:.3f})"
            for name in ("saved", "wait_p50_ms", "wait_p95_ms", "wrote_ms")
        )
        for size, row in found.get("http", {}).items()
    ]
