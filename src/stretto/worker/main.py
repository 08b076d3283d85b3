"""The worker process: `python -m stretto.worker --socket PATH --settings - --heartbeat PATH`.

    --socket PATH        listen on a Unix socket (in a directory of mode 0700 owned by this user)
    --tcp PORT           listen on loopback instead (0: any free port); callers need the token
    --token-file PATH    file that contains the token, mode 0600 (with --tcp)
    --settings FILE | -  JSON, all keys optional: {"models": [...], "flags": {...}, "config", "cache_dir",
                         "peers"}; "-": one line on stdin, which then stays open; its end of file means the
                         parent exited. "peers" (rpc/peers.py) adds a listener for the gates of a cluster
    --heartbeat PATH     the file that the supervisor's watchdog reads (rpc/heartbeat.py)
    --log-format FORMAT  console (default) or json: one object per line
    --log-level LEVEL    debug, info (default), warning or error
    --preload ID         load this model at start (repeatable); "" is the default model

Once it listens it writes one line of JSON to stdout: {"ready": true, "pid", "socket" | "port"}. Logs go to
stderr. SIGTERM shuts it down in order; SIGUSR1 and SIGABRT dump the stacks of all threads to stderr. SIGINT
is left to the parent. It dies with its parent: through the kernel's parent-death signal, which is sent when
the *thread* that started it exits (so start it from a long-lived thread), and through end of file on stdin.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stretto.errors import SettingsError, StrettoError
from stretto.rpc import gc_policy
from stretto.rpc.connection import StreamConnection
from stretto.rpc.heartbeat import HeartbeatWriter
from stretto.rpc.peers import Peers, serve_peers
from stretto.rpc.sockets import read_token, serve_tcp, serve_unix
from stretto.settings import RuntimeSettings
from stretto.telemetry import logs
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.own_process import claim_process
from stretto.worker.server import WorkerServer

PR_SET_PDEATHSIG = 1
CLOSE_TIMEOUT_S = 10.0
log = logging.getLogger("stretto.runtime")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    claim_process()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.set_up(json_lines=options.log_format == "json", level=options.log_level)
    try:
        launch, peers = _launch(options.settings)
        _die_with_parent(options.socket, watch_stdin=options.settings == "-")
        heartbeat = HeartbeatWriter(options.heartbeat) if options.heartbeat is not None else None
        catalogue = Catalogue(launch, heartbeat=heartbeat)
        code = _run(_serve(options, catalogue, heartbeat, peers))
    except StrettoError as error:
        print(json.dumps({"ready": False, "code": error.code, "error": error.message}), flush=True)
        log.error("%s; hint: %s", error.message, error.hint)
        code = 2
    sys.stderr.flush()
    os._exit(code)  # a thread stuck in native code must not keep the process alive


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stretto.worker", description="The process that owns models."
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=Path, metavar="PATH")
    where.add_argument("--tcp", type=int, metavar="PORT")
    parser.add_argument("--token-file", type=Path, metavar="PATH")
    parser.add_argument("--settings", metavar="FILE")
    parser.add_argument("--heartbeat", type=Path, metavar="PATH")
    parser.add_argument("--log-format", choices=("console", "json"), default="console")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--preload", action="append", default=[], metavar="ID")
    options = parser.parse_args(arguments)
    if options.tcp is not None and options.token_file is None:
        parser.error("--tcp needs --token-file")
    return options


async def _serve(
    options: argparse.Namespace,
    catalogue: Catalogue,
    heartbeat: HeartbeatWriter | None,
    peers: Peers | None,
) -> int:
    settings = catalogue.settings.runtime
    server = WorkerServer(catalogue, settings, heartbeat=heartbeat)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.stopping.set)
    token = read_token(options.token_file) if options.tcp is not None else None
    limits = {"frame_bytes_max": settings.frame_bytes_max, "unsent_bytes_max": settings.unread_bytes_max}
    if options.socket is not None:
        listener = await serve_unix(options.socket, lambda c: _accept(server, c, None), **limits)
        where: dict[str, Any] = {"socket": str(options.socket)}
    else:
        listener = await serve_tcp(options.tcp, lambda c: _accept(server, c, token), **limits)
        where = {"port": listener.sockets[0].getsockname()[1]}
    gates = None if peers is None else await _serve_gates(peers, server, settings)
    server.start()
    preloads = [asyncio.create_task(_preload(server, model_id)) for model_id in options.preload]
    gc_policy.settle()
    print(json.dumps({"ready": True, "pid": os.getpid(), **where}), flush=True)
    await server.stopping.wait()
    listener.close()
    if gates is not None:
        gates.close()
    if options.socket is not None:
        options.socket.unlink(missing_ok=True)
    for task in preloads:
        task.cancel()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close(), CLOSE_TIMEOUT_S)
    return 0


async def _serve_gates(peers: Peers, server: WorkerServer, settings: RuntimeSettings) -> asyncio.Server:
    """Serve the gates of a cluster too, on the socket that the supervisor bound."""
    bound = socket.socket(fileno=peers.fd)

    def accept(connection: StreamConnection) -> None:
        server.accept(connection, owner=False)

    return await serve_peers(
        bound,
        peers.access(),
        accept,
        frame_bytes_max=settings.frame_bytes_max,
        unsent_bytes_max=settings.unread_bytes_max,
    )


def _accept(server: WorkerServer, connection: StreamConnection, token: str | None) -> None:
    server.accept(connection, token=token)


async def _preload(server: WorkerServer, model_id: str) -> None:
    """Failures are logged; the next request for the model retries and gets the error."""
    try:
        server.pool.release(await server.pool.acquire(model_id))
    except StrettoError as error:
        log.error("%s could not be loaded: %s; hint: %s", model_id or "the model", error.message, error.hint)


def _run(work: Coroutine[Any, Any, int]) -> int:
    try:
        from uvloop import new_event_loop
    except ImportError:
        factory = None
    else:
        factory = new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


# --- the parent ----------------------------------------------------------------------------------


def _die_with_parent(path: Path | None, *, watch_stdin: bool) -> None:
    """Exit when the parent does: by the kernel's signal on Linux, by end of file on stdin elsewhere."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    if watch_stdin:
        threading.Thread(target=_until_stdin_ends, args=(path,), name="parent", daemon=True).start()


def _until_stdin_ends(path: Path | None) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    if path is not None:
        path.unlink(missing_ok=True)
    os._exit(0)


def _launch(source: str | None) -> tuple[Launch, Peers | None]:
    if source is None:
        return Launch(), None
    text = _first_line() if source == "-" else Path(source).read_bytes()
    try:
        found = msgspec.json.decode(text or b"{}", type=_LaunchFile)
    except msgspec.MsgspecError as error:
        raise SettingsError(f"the worker's settings cannot be read: {error}", hint="") from None
    return Launch(tuple(found.models), found.flags, found.config, found.cache_dir), found.peers


def _first_line() -> bytes:
    """Read byte by byte, so that nothing after the line is consumed."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


class _LaunchFile(msgspec.Struct, forbid_unknown_fields=True):
    models: list[str] = []
    flags: dict[str, Any] = {}
    config: str | None = None
    cache_dir: str | None = None
    peers: Peers | None = None
