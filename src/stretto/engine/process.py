"""A runtime as a process of this machine: started, connected to, signalled, reaped.

Every life has a socket and a heartbeat file of its own, in one directory of mode 0700 that goes with the
launcher. Decides nothing: `engine.host` does what the supervisor says.
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
from typing import Any

import msgspec

from stretto.rpc.connection import Connection
from stretto.rpc.frames import FRAME_BYTES_MAX
from stretto.rpc.heartbeat import Heartbeat, HeartbeatReader
from stretto.rpc.sockets import connect_unix

CONNECT_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class Places:
    """What one life of the runtime is told."""

    socket: Path
    heartbeat: Path


@dataclass(frozen=True, slots=True)
class RuntimeStart:
    """How `python -m stretto.runtime` is started. `flags` are settings by their dotted names."""

    models: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    cache_dir: str | None = None
    preload: tuple[str, ...] = ()

    def command(self, places: Places) -> list[str]:
        chosen = ["--socket", os.fspath(places.socket), "--heartbeat", os.fspath(places.heartbeat)]
        preloads = [part for model_id in self.preload for part in ("--preload", model_id)]
        return [sys.executable, "-m", "stretto.runtime", "--settings", "-", *chosen, *preloads]

    def line(self) -> bytes:
        """Its first line of input. What follows is silence, until we are gone."""
        given = {
            "models": self.models,
            "flags": self.flags,
            "config": self.config,
            "cache_dir": self.cache_dir,
        }
        return msgspec.json.encode({name: value for name, value in given.items() if value}) + b"\n"


class ProcessChild:
    def __init__(
        self, process: asyncio.subprocess.Process, places: Places, *, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        self._process = process
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
        self._places.socket.unlink(missing_ok=True)
        self._places.heartbeat.unlink(missing_ok=True)


class ProcessLauncher:
    child: type[ProcessChild] = ProcessChild

    def __init__(self, start: RuntimeStart, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._start = start
        self._frame_bytes_max = frame_bytes_max
        self.directory: Path | None = None

    async def launch(self, epoch: int) -> ProcessChild:
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="stretto-"))  # mode 0700
        places = Places(self.directory / f"{epoch}.sock", self.directory / f"{epoch}.beat")
        process = await asyncio.create_subprocess_exec(
            *self._start.command(places), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        assert process.stdin is not None
        process.stdin.write(self._start.line())
        return self.child(process, places, frame_bytes_max=self._frame_bytes_max)

    def close(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
