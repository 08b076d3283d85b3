"""The two servers with the model that sees: same model, projector, slots and window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.lab import LOGS, OURS, ROOT, THEIRS
from benchmarks.pictures import client
from stretto.loadgen import known_peers
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import Peer, serving
from stretto.loadgen.plan import Target
from stretto.loadgen.target import find_target

MODEL = ROOT / "tests" / "models" / "sees.gguf"
PROJECTOR = MODEL.with_name(f"mmproj-{MODEL.name}")
WINDOW = 1024
BOTH = (OURS, THEIRS)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all measurements share."""

    llama_server: Path
    quick: bool
    model: Path = MODEL
    projector: Path = PROJECTOR

    def peer(self, name: str, slots: int, flags: tuple[str, ...] = ()) -> Peer:
        given = Serving(model=self.model, slots=slots, window=WINDOW, threads=None)
        if name == OURS:
            return known_peers.stretto(given, ["--mmproj", str(self.projector), *flags])
        theirs = known_peers.llama_server(self.llama_server, given)
        return replace(
            theirs, command=lambda port: [*theirs.command(port), "--mmproj", str(self.projector), *flags]
        )

    @contextmanager
    def served(self, name: str, *flags: str, slots: int = 8) -> Iterator[Target]:
        """A fresh server that has seen one picture, which nothing else uses."""
        with serving(self.peer(name, slots, flags), LOGS) as url:
            target = find_target(url)
            asyncio.run(client.ask(target, client.described(0).messages))
            yield target

    def run(
        self, name: str, do: Callable[[Target], Coroutine[Any, Any, Result]], *flags: str, slots: int = 8
    ) -> Result:
        """One coroutine against a fresh server."""
        with self.served(name, *flags, slots=slots) as target:
            return asyncio.run(do(target))
