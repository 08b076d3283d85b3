"""The output pump: who delivers a tick's output, and that its order is that of the ticks."""

from __future__ import annotations

import threading
from array import array
from typing import NamedTuple

import pytest

from stretto.core.tick import Events, Started
from stretto.worker.output import AT_ONCE_MAX, OutputPump


class Columns:
    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def extend(self, numbers: array[int], counts: array[int], tokens: array[int]) -> None:
        assert list(counts) == [1] * len(tokens)
        self.rows += zip(numbers, tokens, strict=True)
        self.threads.add(threading.current_thread().name)


class RowOf(NamedTuple):
    table: Columns
    number: int


class Stream:
    def __init__(
        self, *, light: bool, gate: threading.Event | None = None, place: RowOf | None = None
    ) -> None:
        self.light, self.broken, self.place = light, False, place
        self.seen: list[int] = []
        self.threads: list[str] = []
        self._gate = gate

    def start(self, started: object) -> None:
        self.threads.append(threading.current_thread().name)

    def push(self, tokens: array[int], extras: object) -> None:
        if self._gate is not None:
            assert self._gate.wait(10)
        self.seen.extend(tokens)
        self.threads.append(threading.current_thread().name)

    def score(self, scores: object) -> None: ...

    def advance(self, progress: object) -> None: ...

    def finish(self, terminal: object) -> None: ...


def tick(*tokens: int, requests: tuple[str, ...] = ("a",)) -> Events:
    per = len(tokens) // len(requests)
    return Events(list(requests), array("i", [per] * len(requests)), array("i", tokens))


@pytest.fixture
def pump():
    made = OutputPump(lambda _: None, name="output")
    made.start()
    yield made
    made.close()


def test_token_ids_are_delivered_at_once_by_the_loop_s_thread(pump):
    ended: list[str] = []
    stream = Stream(light=True)
    pump.register("a", stream)
    pump.after_tick(lambda: ended.append(threading.current_thread().name))
    pump.deliver(tick(1))
    pump.deliver(tick(2, 3))
    assert stream.seen == [1, 2, 3]
    assert set(stream.threads) == set(ended) == {threading.current_thread().name}


@pytest.mark.parametrize("why", ["text", "many", "extras", "start"])
def test_what_may_take_longer_is_delivered_by_the_output_thread(pump, why):
    streams = {str(at): Stream(light=why != "text") for at in range(AT_ONCE_MAX + 1 if why == "many" else 2)}
    for name, stream in streams.items():
        pump.register(name, stream)
    events = tick(*range(len(streams)), requests=tuple(streams))
    if why == "extras":
        events.extras["0"] = object()
    if why == "start":
        events.started.append(Started("0", 0.0, 1, 0))
    pump.deliver(events)
    pump.close()
    assert {name for stream in streams.values() for name in stream.threads} == {"output"}


def test_rows_of_many_streams_are_delivered_at_once(pump):
    """To their connections, in the order of the tick; what is more than a token goes stream by stream."""
    tables = [Columns(), Columns()]
    names = [str(at) for at in range(2 * AT_ONCE_MAX)]
    streams = [Stream(light=True, place=RowOf(tables[at % 2], 100 + at)) for at in range(len(names))]
    for name, stream in zip(names, streams, strict=True):
        pump.register(name, stream)
    for first in (0, 1000):
        pump.deliver(tick(*range(first, first + len(names)), requests=tuple(names)))
    for half, table in enumerate(tables):
        mine = range(half, len(names), 2)
        assert table.rows == [(100 + at, first + at) for first in (0, 1000) for at in mine]
        assert table.threads == {threading.current_thread().name}
    assert not any(stream.seen for stream in streams)
    pump.deliver(tick(1, 2, 3, 4, requests=("0", "1")))
    assert (streams[0].seen, streams[1].seen) == ([1, 2], [3, 4])


def test_rows_follow_the_streams_that_are_registered(pump):
    before, after = Columns(), Columns()
    pump.register("a", Stream(light=True, place=RowOf(before, 1)))
    pump.deliver(tick(5))
    pump.register("a", Stream(light=True, place=RowOf(after, 2)))
    pump.deliver(tick(6))
    assert (before.rows, after.rows) == ([(1, 5)], [(2, 6)])
    pump.register("b", Stream(light=True))
    pump.deliver(tick(7, 8, requests=("a", "b")))
    assert after.rows == [(2, 6)], "one of them needs more than a row"


def test_a_tick_waits_for_those_before_it(pump):
    gate = threading.Event()
    slow, quick = Stream(light=False, gate=gate), Stream(light=True)
    pump.register("slow", slow)
    pump.register("quick", quick)
    pump.deliver(tick(1, 2, requests=("slow", "quick")))
    for token in range(3, 50):
        pump.deliver(tick(token, requests=("quick",)))
    assert quick.seen == []
    gate.set()
    pump.close()
    assert quick.seen == list(range(2, 50))


def test_a_stream_that_fails_breaks_only_itself(pump):
    cancelled: list[str] = []
    pump = OutputPump(cancelled.append)
    bad, good = Stream(light=True), Stream(light=True)
    bad.push = lambda *_: 1 / 0  # type: ignore[method-assign]
    pump.register("bad", bad)
    pump.register("good", good)
    pump.deliver(tick(1, 2, requests=("bad", "good")))
    assert cancelled == ["bad"]
    assert bad.broken
    assert good.seen == [2]
