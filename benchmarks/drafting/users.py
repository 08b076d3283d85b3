"""Users in a closed loop: each asks again as soon as it is answered, so that all slots stay busy.

A batch of equal answers would measure its slowest stream: the streams whose drafts are good end early and
leave the others alone. Answers differ in length: plain decoding of equal ones runs in lockstep, with all
prompts in one pass, which no real load does. Tokens are counted by the loop itself, within a window in which
all users are active.

Two models are compared in turns of a tenth of a second: a processor that is shared with other machines has
half its speed now and then, for a second or less. While one has its turn, the loop of the other is held
between two ticks.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.drafting.prompts import Prompt, prompt
from stretto import LLM
from stretto.core.slot import Slot
from stretto.core.state import State

TURN_S = 0.1
HELD_WITHIN_S = 60.0
CALM_S = 0.3  # in which the ticks end that were running when the last requests were cancelled
GOLDEN = 0.6180339887  # multiples of it are spread evenly


class Turn(NamedTuple):
    """What a model did in its turn."""

    seconds: float
    tokens: int
    prompt_rows: int


class Window(NamedTuple):
    turns: list[Turn]
    texts: dict[int, str]  # all answers until now, by the number of their prompt
    proposed: int  # for the answers that ended in this window
    accepted: int


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


def watch(
    models: Mapping[str, LLM], load: Load, *, windows: Sequence[float], warm_up: float = 0.0
) -> list[dict[str, Window]]:
    """Tokens of each model in windows of so many seconds of its own, one after the other.

    Counted after half an answer for each user, and `warm_up` seconds.
    """
    in_turns = {name: _InTurns(model) for name, model in models.items()}
    return asyncio.run(_watch(in_turns, load, windows, warm_up))


def answer(model: LLM, load: Load, *, answers: int) -> Window:
    """So many whole answers, one after the other: the same work with drafts and without."""
    began, texts, drafts, tokens, rows = time.perf_counter(), dict[int, str](), [0, 0], 0, 0
    for number in range(load.first, load.first + answers):
        asked, options = load.call(number)
        [found] = model.generate(asked.text, **options) if asked.raw else [model.chat(asked.text, **options)]
        texts[number] = found.text
        tokens += found.usage.completion_tokens
        rows += found.usage.prompt_tokens
        drafts[0] += found.usage.proposed_drafts
        drafts[1] += found.usage.accepted_drafts
    return Window([Turn(time.perf_counter() - began, tokens, rows)], texts, *drafts)


class _InTurns:
    """A model with its users, whose loop runs when it is their turn."""

    def __init__(self, model: LLM) -> None:
        self._model = model
        self._go, self._held = threading.Event(), threading.Event()
        self._at = 0.0, 0, 0  # when its turn began, and the tokens and prompt rows until then
        self._asking: list[asyncio.Task[None]] = []
        self._turns: list[Turn] = []
        self.texts = dict[int, str]()
        self.drafts = [0, 0]

    def begin(self, load: Load) -> None:
        numbers = itertools.count(load.first)
        calls = (_ask(self._model, load, numbers, self.texts, self.drafts) for _ in range(load.users))
        self._asking = [asyncio.create_task(call) for call in calls]

    async def hold(self) -> None:
        """From the end of the tick that runs."""
        self._go.clear()
        self._held.clear()
        self._model._runtime.ask(self._wait)
        if not await asyncio.to_thread(self._held.wait, HELD_WITHIN_S):
            raise TimeoutError("the loop of a model was not held")

    async def turn(self, seconds: float) -> None:
        self._go.set()
        await asyncio.sleep(seconds)
        await self.hold()

    def counted(self) -> Window:
        """Since it was asked for the last time."""
        window = Window(self._turns, dict(self.texts), *self.drafts)
        self._turns, self.drafts[:] = [], (0, 0)
        return window

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self._turns)

    @property
    def seconds(self) -> float:
        return sum(turn.seconds for turn in self._turns)

    async def end(self) -> None:
        for task in self._asking:
            task.cancel()
        self._go.set()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _wait(self, state: State) -> None:
        since_s, tokens, rows = self._at
        stats = self._model.stats()
        rows_now = stats.computed_tokens + sum(map(_prompt_rows, state.active))
        if since_s:
            self._turns.append(Turn(time.perf_counter() - since_s, stats.tokens - tokens, rows_now - rows))
        self._held.set()
        self._go.wait()
        state.committed_s = None  # as after a pause: it is not the time of a tick
        self._at = time.perf_counter(), stats.tokens, rows_now


def _prompt_rows(slot: Slot) -> int:
    """Of its prompt, that were computed until now."""
    job = slot.job
    return 0 if job is None else max(0, min(slot.computed, job.prompt_tokens) - job.cached)


async def _watch(
    models: dict[str, _InTurns], load: Load, windows: Sequence[float], warm_up: float
) -> list[dict[str, Window]]:
    order = list(models.values())
    found = []
    try:
        for model in order:
            await model.hold()
        for model in order:
            model.begin(load)
        while min(model.tokens for model in order) < load.users * load.tokens // 2:
            order = await _turns(order)
        for number, seconds in enumerate((warm_up, *windows)):
            for model in order:
                model.counted()
            while min(model.seconds for model in order) < seconds:
                order = await _turns(order)
            if number:
                found.append({name: model.counted() for name, model in models.items()})
    finally:
        for model in order:
            await model.end()
    await asyncio.sleep(CALM_S)
    return found


async def _turns(order: list[_InTurns]) -> list[_InTurns]:
    """One of each; the last one begins the next time."""
    for model in order:
        await model.turn(TURN_S)
    return order[::-1]


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
