"""A worker as a local process: start, connect, signal, reap.

Each process has its own socket and heartbeat file, in a directory of mode 0700 that the launcher removes.
Makes no decisions: `client.host` carries out those of the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from stretto.client.child_output import LineRelay
from stretto.rpc.connection import Connection
from stretto.rpc.frames import FRAME_BYTES_MAX
from stretto.rpc.heartbeat import Heartbeat, HeartbeatReader
from stretto.rpc.peers import Peers
from stretto.rpc.sockets import connect_unix

CONNECT_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class Places:
    """Paths given to one worker process."""

    socket: Path
    heartbeat: Path


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """How `python -m stretto.worker` is started. `flags` are settings by their dotted names."""

    models: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    cache_dir: str | None = None
    preload: tuple[str, ...] = ()
    peers: Peers | None = None  # also listens for the gates of a cluster
    log_format: Literal["console", "json"] = "console"  # json: every stderr line is a JSON object
    log_level: str = "info"
    link: Path | None = None  # pointed at the socket of each new process, for clients in other processes

    def command(self, places: Places) -> list[str]:
        chosen = ["--socket", os.fspath(places.socket), "--heartbeat", os.fspath(places.heartbeat)]
        preloads = [part for model_id in self.preload for part in ("--preload", model_id)]
        logs = ["--log-format", self.log_format, "--log-level", self.log_level]
        return [sys.executable, "-m", "stretto.worker", "--settings", "-", *chosen, *logs, *preloads]

    def line(self) -> bytes:
        """The first line on its stdin, which then stays open; end of file means this process is gone."""
        given = {
            "models": self.models,
            "flags": self.flags,
            "config": self.config,
            "cache_dir": self.cache_dir,
            "peers": self.peers,
        }
        return msgspec.json.encode({name: value for name, value in given.items() if value}) + b"\n"


class ProcessChild:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        places: Places,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        relay: LineRelay | None = None,
    ) -> None:
        self._process = process
        self._relay = relay
        self._frame_bytes_max = frame_bytes_max
        self._places = places
        self._heartbeat = HeartbeatReader(places.heartbeat)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def connect(self) -> Connection:
        while True:
            try:
                return await connect_unix(self._places.socket, frame_bytes_max=self._frame_bytes_max)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(CONNECT_EVERY_S)

    def heartbeat(self) -> Heartbeat | None:
        return self._heartbeat.read()

    def clean_up(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._heartbeat.close()
        if self._relay is not None:
            self._relay.finish()
        self._places.socket.unlink(missing_ok=True)
        self._places.heartbeat.unlink(missing_ok=True)


class ProcessLauncher:
    child: type[ProcessChild] = ProcessChild

    def __init__(self, start: WorkerStart, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._start = start
        self._frame_bytes_max = frame_bytes_max
        self.directory: Path | None = None

    async def launch(self, epoch: int) -> ProcessChild:
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="stretto-"))  # mode 0700
        places = Places(self.directory / f"{epoch}.sock", self.directory / f"{epoch}.beat")
        if self._start.link is not None:
            _point(self._start.link, places.socket)
        relay = LineRelay() if self._start.log_format == "json" else None
        try:
            process = await asyncio.create_subprocess_exec(
                *self._start.command(places),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=None if relay is None else relay.descriptor,
                pass_fds=() if self._start.peers is None else (self._start.peers.fd,),
            )
        except BaseException:
            if relay is not None:
                relay.abandon()
            raise
        if relay is not None:
            relay.start()
        assert process.stdin is not None
        process.stdin.write(self._start.line())
        return self.child(process, places, frame_bytes_max=self._frame_bytes_max, relay=relay)

    def close(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None


def _point(link: Path, target: Path) -> None:
    """Replace the link at once: a reader sees the old target or the new one."""
    fresh = link.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)
