"""Counters of all API processes, for `/metrics` of whichever answers.

Each process serves its own counters on a socket in the directory that all of them share (mode 0700), and
adds those of the others to its own when it is asked. One that does not answer in time is left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stretto.server.operations.counters import Counters, ModelCounters
from stretto.server.operations.instrumented import InstrumentedClient
from stretto.telemetry.histogram import Histogram

ANSWER_S = 0.5
LOOK_AGAIN_S = 0.02
_SUMS = ("prompt_tokens", "cached_tokens", "generated_tokens", "preemptions")
_HISTOGRAMS = ("queue_wait", "queue_wait_in_vain", "first_token", "inter_token", "request_time")


class Siblings:
    """`number`: of this process; the sockets of all are in `directory`."""

    def __init__(self, directory: Path, number: int, processes: int) -> None:
        self._directory = directory
        self._number = number
        self._processes = processes
        self._server: asyncio.Server | None = None

    async def start(self, client: InstrumentedClient) -> None:
        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            health = client.health
            state = {
                "counters": state_of(client.counters),
                "batches": client.batch_stats(),
                "ready": health.ready and health.has_loaded,
            }
            writer.write(msgspec.json.encode(state))
            with suppress(OSError):
                await writer.drain()
            writer.close()

        path = self._path(self._number)
        path.unlink(missing_ok=True)  # left by a process of this number that was killed
        self._server = await asyncio.start_unix_server(answer, path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path(self._number).unlink(missing_ok=True)

    async def all_ready(self) -> None:
        """Wait until every other process has a worker with a loaded model."""
        for number in self._others:
            while (answer := await self._ask(number)) is None or not answer["ready"]:
                await asyncio.sleep(LOOK_AGAIN_S)

    @property
    def _others(self) -> list[int]:
        return [number for number in range(self._processes) if number != self._number]

    async def total(self, counters: Counters, batches: dict[str, Any]) -> tuple[Counters, dict[str, Any]]:
        """The given counters and those of the other processes together."""
        answers = await asyncio.gather(*(self._ask(number) for number in self._others))
        whole = Counters()
        add_state(whole, state_of(counters))
        for answer in answers:
            if answer is not None:
                add_state(whole, answer["counters"])
                batches = added(batches, answer["batches"])
        return whole, batches

    async def _ask(self, number: int) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    found: dict[str, Any] = msgspec.json.decode(await reader.read(-1))
                finally:
                    writer.close()
                return found
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return None

    def _path(self, number: int) -> Path:
        return self._directory / f"api-{number}.sock"


def state_of(counters: Counters) -> dict[str, Any]:
    return {
        "rejected": counters.rejected,
        "responses": {str(status): count for status, count in counters.responses.items()},
        "ignored_fields": counters.ignored_fields,
        "running": counters.running,
        "waiting": counters.waiting,
        "models": {name: _model_state(one) for name, one in counters.models.items()},
    }


def _model_state(one: ModelCounters) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(one, name) for name in _SUMS}
    found["outcomes"] = one.outcomes
    for name in _HISTOGRAMS:
        values: Histogram = getattr(one, name)
        found[name] = {"counts": values.counts, "total": values.total}
    return found


def add_state(counters: Counters, state: Mapping[str, Any]) -> None:
    counters.rejected += Counter(state["rejected"])
    counters.responses += Counter({int(status): count for status, count in state["responses"].items()})
    counters.ignored_fields += Counter(state["ignored_fields"])
    counters.running += state["running"]
    counters.waiting += state["waiting"]
    for name, given in state["models"].items():
        model = counters.of(name)
        model.outcomes += Counter(given["outcomes"])
        for field in _SUMS:
            setattr(model, field, getattr(model, field) + given[field])
        for field in _HISTOGRAMS:
            values: Histogram = getattr(model, field)
            values.counts = [a + b for a, b in zip(values.counts, given[field]["counts"], strict=True)]
            values.total += given[field]["total"]


def added(ours: Any, theirs: Any) -> Any:
    """Numbers are summed, deeply; anything else stays ours."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        names = [*ours, *(name for name in theirs if name not in ours)]
        return {
            name: added(ours[name], theirs[name])
            if name in ours and name in theirs
            else ours.get(name, theirs.get(name))
            for name in names
        }
    if isinstance(ours, bool) or not isinstance(ours, int | float) or not isinstance(theirs, int | float):
        return ours
    return ours + theirs
