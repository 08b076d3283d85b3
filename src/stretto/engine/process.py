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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.rpc.connection import Connection
from stretto.rpc.heartbeat import Heartbeat, HeartbeatReader
from stretto.rpc.sockets import connect_unix

CONNECT_EVERY_S = 0.01
STDERR = 2  # stdout is for data, and a runtime has none


@dataclass(frozen=True, slots=True)
class Places:
    """What one life of the runtime is told."""

    socket: Path
    heartbeat: Path


Command = Callable[[Places], Sequence[str]]


class ProcessChild:
    def __init__(self, process: asyncio.subprocess.Process, places: Places) -> None:
        self._process = process
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
                return await connect_unix(self._places.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(CONNECT_EVERY_S)

    def heartbeat(self) -> Heartbeat | None:
        return self._heartbeat.read()

    def clean_up(self) -> None:
        self._heartbeat.close()
        self._places.socket.unlink(missing_ok=True)
        self._places.heartbeat.unlink(missing_ok=True)


class ProcessLauncher:
    def __init__(self, command: Command) -> None:
        self._command = command
        self.directory: Path | None = None

    async def launch(self, epoch: int) -> ProcessChild:
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="stretto-"))  # mode 0700
        places = Places(self.directory / f"{epoch}.sock", self.directory / f"{epoch}.beat")
        process = await asyncio.create_subprocess_exec(
            *self._command(places), stdin=asyncio.subprocess.DEVNULL, stdout=STDERR
        )
        return ProcessChild(process, places)

    def close(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None


def runtime_command(*arguments: str) -> Command:
    """The usual one: this Python, this package."""

    def command(places: Places) -> list[str]:
        return [
            sys.executable,
            "-m",
            "stretto.runtime",
            "--socket",
            os.fspath(places.socket),
            "--heartbeat",
            os.fspath(places.heartbeat),
            *arguments,
        ]

    return command
