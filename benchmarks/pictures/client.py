"""Questions about generated pictures over HTTP, as streams with the time of every chunk.

Pictures travel as OpenAI's `image_url` parts with data URLs, which both servers take. An answer that ends
with an error raises: a measurement with a lost request is none.
"""

from __future__ import annotations

import asyncio
import base64
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from benchmarks.sse_client import request_bytes
from stretto.errors import BenchError
from stretto.loadgen.exchange import Notice, perform
from stretto.loadgen.plan import Target
from stretto.loadgen.records import STOPPED, LoadRecord
from stretto.loadgen.target import ask as call
from tools.eyes import dataset, drawing, scenes
from tools.eyes.scenes import Scene

ANSWER_TOKENS = 112  # the longest answer has 101
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A held-out picture with a question and its right answer."""

    messages: list[Message]
    answer: str
    topic: str


@dataclass(slots=True)
class Said:
    """An answer, and the client's record of it with times on the monotonic clock."""

    text: str
    record: LoadRecord

    @property
    def first_token_s(self) -> float:
        return self.record.chunks_s[0] - self.record.sent_s


def data_url(scene: Scene, seed: int) -> str:
    data = drawing.png(drawing.picture(scene, seed))
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def user(text: str, url: str = "") -> Message:
    parts = [{"type": "image_url", "image_url": {"url": url}}] if url else []
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if url else text}


@cache
def held_out(count: int) -> Sequence[Asked]:
    """Pictures that training never drew, one question each."""
    return [
        Asked([user(question.text, data_url(scene, index))], question.answer, question.topic)
        for index, (scene, question) in enumerate(dataset.held_out(count))
    ]


def described(number: int) -> Asked:
    """A picture of several things that is none of `held_out`, to be described."""
    index = 100_000 + 100 * number
    while len((scene := scenes.scene(scenes.HELD_OUT_SEED, index)).things) < 3 or scene.number:
        index += 1
    url = data_url(scene, index)
    return Asked([user("Describe the picture.", url)], scenes.description(scene), "description")


def conversation(number: int, turns: int) -> tuple[str, list[scenes.Question]]:
    """The URL of a picture, and this many different questions about it."""
    for index in range(200_000 + 100 * number, 200_000 + 100 * (number + 1)):
        scene = scenes.scene(scenes.HELD_OUT_SEED, index)
        asked = scenes.questions(scene, random.Random(index))
        if not scene.number and len(asked) >= turns:
            return data_url(scene, index), asked[:turns]
    raise AssertionError("no picture has so many questions")


async def ask(
    target: Target,
    messages: list[Message],
    *,
    max_tokens: int = ANSWER_TOKENS,
    notice: Notice | None = None,
    stop: asyncio.Event | None = None,
    **fields: Any,
) -> Said:
    """Send one streamed request and read its answer; `stop` ends it early, which is no error."""
    body = {
        "model": target.model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    record = LoadRecord(id="", group="", due_s=time.monotonic())
    request = request_bytes(target.host, body)
    text = await perform(target, request, record, keeps_text=True, notice=notice, stop=stop)
    if record.error and record.error != STOPPED:
        raise BenchError(f"a request failed: {record.error}", hint=record.detail[:300])
    return Said(text, record)


@dataclass(slots=True)
class Streams:
    """Text streams that run until they are stopped; each begins anew when its answer is complete."""

    target: Target
    count: int
    max_tokens: int = 700
    said: list[Said] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _flowing: set[int] = field(default_factory=set)

    async def __aenter__(self) -> Streams:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self.count)]
        while len(self._flowing) < self.count:
            if failed := [task for task in self._tasks if task.done()]:
                await failed[0]
            await asyncio.sleep(0.02)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _run(self, number: int) -> None:
        def flowing(chunks: int) -> None:
            if chunks >= 4:
                self._flowing.add(number)

        turn = 0
        while not self._stop.is_set():
            first = 1 + (7 * number + turn) % 60
            text = f"Count from {first} to {first + 40}."
            self.said.append(
                await ask(
                    self.target,
                    [user(text)],
                    max_tokens=self.max_tokens,
                    notice=flowing,
                    stop=self._stop,
                    ignore_eos=True,
                )
            )
            turn += 1

    def longest_gap_s(self, since_s: float, until_s: float, *, within: bool = False) -> float:
        """Of all streams, between two chunks of one answer that lie in this time or around its ends.

        `within`: only gaps that lie in this time.
        """
        gaps = [
            later - sooner
            for sooner, later in self._gaps()
            if (since_s <= sooner and later <= until_s if within else sooner < until_s and later > since_s)
        ]
        if not gaps:
            raise BenchError("no stream ran during a measurement")
        return max(gaps)

    def median_gap_s(self) -> float:
        return statistics.median(later - sooner for sooner, later in self._gaps())

    def _gaps(self) -> Iterator[tuple[float, float]]:
        """Times of two chunks that follow each other in an answer."""
        for said in self.said:
            yield from pairwise(said.record.chunks_s)


def metric(target: Target, name: str) -> float:
    """The sum of a metric over its labels, as the server reports it now."""
    _, text = call(target, "GET", "/metrics")
    lines = str(text).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
