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
from typing import NamedTuple

from benchmarks.drafting.prompts import prompt
from stretto import LLM

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


def watch(model: LLM, kind: str, users: int, *, tokens: int, seconds: float, first: int) -> Window:
    """Tokens in `seconds`, counted from when every user has had half an answer."""
    return asyncio.run(_watch(model, kind, users, tokens=tokens, seconds=seconds, first=first))


async def _watch(model: LLM, kind: str, users: int, *, tokens: int, seconds: float, first: int) -> Window:
    numbers, texts, done = itertools.count(first), dict[int, str](), asyncio.Event()
    drafts = [0, 0]
    asking = [
        asyncio.create_task(_ask(model, kind, numbers, tokens, texts, drafts, done)) for _ in range(users)
    ]
    began = model.stats().tokens
    while model.stats().tokens - began < users * tokens // 2:
        await asyncio.sleep(0.01)
    before, started = model.stats().tokens, time.perf_counter()
    await asyncio.sleep(seconds)
    after, ended = model.stats().tokens, time.perf_counter()
    done.set()
    await asyncio.gather(*asking)
    return Window(after - before, ended - started, texts, *drafts)


def length(number: int, tokens: int) -> int:
    """Of the answer to this prompt: 0.75 to 1.25 times `tokens`, so that users do not ask in lockstep."""
    return int(tokens * (0.75 + 0.5 * (number * GOLDEN % 1.0)))


async def _ask(
    model: LLM,
    kind: str,
    numbers: Iterator[int],
    tokens: int,
    texts: dict[int, str],
    drafts: list[int],
    done: asyncio.Event,
) -> None:
    while not done.is_set():
        number = next(numbers)
        answer = await model.achat(
            prompt(kind, number), max_tokens=length(number, tokens), temperature=0.0, ignore_eos=True
        )
        texts[number] = answer.text
        drafts[0] += answer.usage.proposed_drafts
        drafts[1] += answer.usage.accepted_drafts
