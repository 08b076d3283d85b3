"""Users in a closed loop: each asks again as soon as it is answered, so that all slots stay busy.

A batch of equal answers would measure its slowest stream: the streams whose drafts are good end early and
leave the others alone. Answers differ in length: plain decoding of equal ones runs in lockstep, with all
prompts in one pass, which no real load does. Tokens are counted by the loop itself, within a window in which
all users are active.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.drafting.prompts import Prompt, prompt
from stretto import LLM

CALM_S = 0.3  # in which the ticks end that were running when the last requests were cancelled
GOLDEN = 0.6180339887  # multiples of it are spread evenly


class Window(NamedTuple):
    tokens: int
    seconds: float
    texts: dict[int, str]  # answers by the number of their prompt
    proposed: int
    accepted: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Load(NamedTuple):
    """What the users ask, from prompt number `first` on; answers have about so many tokens."""

    kind: str
    users: int
    tokens: int
    first: int
    tuning: bool = False

    def call(self, number: int) -> tuple[Prompt, dict[str, Any]]:
        asked = prompt(self.kind, number, tuning=self.tuning)
        return asked, {**asked.options, "max_tokens": length(number, self.tokens)}


def watch(model: LLM, load: Load, *, seconds: float) -> Window:
    """Tokens in `seconds`, counted from when every user has had half an answer."""
    return asyncio.run(_watch(model, load, seconds))


def answer(model: LLM, load: Load, *, answers: int) -> Window:
    """So many whole answers, one after the other: the same work with drafts and without."""
    began, texts, drafts, tokens = time.perf_counter(), dict[int, str](), [0, 0], 0
    for number in range(load.first, load.first + answers):
        asked, options = load.call(number)
        [found] = model.generate(asked.text, **options) if asked.raw else [model.chat(asked.text, **options)]
        texts[number] = found.text
        tokens += found.usage.completion_tokens
        drafts[0] += found.usage.proposed_drafts
        drafts[1] += found.usage.accepted_drafts
    return Window(tokens, time.perf_counter() - began, texts, *drafts)


async def _watch(model: LLM, load: Load, seconds: float) -> Window:
    numbers, texts = itertools.count(load.first), dict[int, str]()
    drafts = [0, 0]
    asking = [asyncio.create_task(_ask(model, load, numbers, texts, drafts)) for _ in range(load.users)]
    began = model.stats().tokens
    while model.stats().tokens - began < load.users * load.tokens // 2:
        await asyncio.sleep(0.01)
    before, started = model.stats().tokens, time.perf_counter()
    await asyncio.sleep(seconds)
    after, ended = model.stats().tokens, time.perf_counter()
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.sleep(CALM_S)
    return Window(after - before, ended - started, texts, *drafts)


def length(number: int, tokens: int) -> int:
    """Of the answer to this prompt: 0.75 to 1.25 times `tokens`, so that users do not ask in lockstep."""
    return int(tokens * (0.75 + 0.5 * (number * GOLDEN % 1.0)))


async def _ask(
    model: LLM,
    load: Load,
    numbers: Iterator[int],
    texts: dict[int, str],
    drafts: list[int],
) -> None:
    while True:
        number = next(numbers)
        asked, options = load.call(number)
        if asked.raw:
            [answer] = await model.agenerate(asked.text, **options)
        else:
            answer = await model.achat(asked.text, **options)
        texts[number] = answer.text
        drafts[0] += answer.usage.proposed_drafts
        drafts[1] += answer.usage.accepted_drafts
