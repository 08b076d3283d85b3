"""Point 5: a conversation with a picture in its first turn, whose later turns reuse it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from benchmarks.lab import OURS
from benchmarks.pictures import client
from benchmarks.pictures.client import Message, Said, user
from benchmarks.pictures.servers import Bench
from stretto.loadgen.bars import Bar
from stretto.loadgen.plan import Target

TURNS = 4
CONVERSATIONS, CONVERSATIONS_QUICK = 6, 2
REUSED_MIN = 0.95  # of the prompt of the turn before
WAYS = ("kept", "preempted", "snapshot")


async def turn(target: Target, messages: list[Message], *, preempt: bool) -> Said:
    """One answer; `preempt`: urgent requests take its slot from its second token on."""
    if not preempt:
        return await client.ask(target, messages)
    begun = asyncio.Event()
    said = asyncio.create_task(
        client.ask(target, messages, notice=lambda _: begun.set(), priority="background")
    )
    ended = asyncio.create_task(begun.wait())
    await asyncio.wait([said, ended], return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    while not said.done():
        await client.ask(target, [user("Count from 1 to 2.")], max_tokens=2, priority="urgent")
    return await said


async def converse(target: Target, number: int, way: str) -> tuple[list[Said], int]:
    """The answers of one conversation, and how many are right."""
    url, questions = client.conversation(number, TURNS)
    messages: list[Message] = []
    found, right = [], 0
    for at, question in enumerate(questions):
        messages.append(user(question.text, url if at == 0 else ""))
        said = await turn(target, messages, preempt=way == "preempted")
        messages.append({"role": "assistant", "content": said.text})
        found.append(said)
        right += said.text == question.answer
        if way == "snapshot":  # something else in the only slot
            await client.ask(target, [user(f"Count from {at + 3} to 60. " * 12)], max_tokens=8)
    return found, right


def reused(said: list[Said]) -> list[float]:
    """The share of each turn's prompt that the next turn finds in the cache."""
    pairs = pairwise(said)
    return [later.record.cached_tokens / sooner.record.prompt_tokens for sooner, later in pairs]


def measure(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """A conversation of 4 turns reuses its picture: as it is, after preemption, and from a snapshot."""
    count = CONVERSATIONS_QUICK if bench.quick else CONVERSATIONS
    figures: dict[str, Any] = {"conversations": count}
    bars, texts = [], {}

    async def all_of(target: Target, way: str) -> tuple[list[tuple[list[Said], int]], float]:
        found = [await converse(target, number, way) for number in range(count)]
        return found, client.metric(target, "stretto_preemptions_total")

    for way in WAYS:
        found, preemptions = bench.run(OURS, lambda target, way=way: all_of(target, way), slots=1)  # type: ignore[misc]
        texts[way] = [said.text for answers, _ in found for said in answers]
        shares = [share for answers, _ in found for share in reused(answers)]
        differ = sum(one != other for one, other in zip(texts[way], texts[WAYS[0]], strict=True))
        figures[way] = {
            "cached_share_of_the_turn_before": min(shares),
            "cached_tokens": [[said.record.cached_tokens for said in answers] for answers, _ in found],
            "prompt_tokens": [[said.record.prompt_tokens for said in answers] for answers, _ in found],
            "right": sum(right for _, right in found) / (count * TURNS),
            "preemptions": preemptions,
        }
        bars += [
            Bar(f"turns, {way}: reused of the turn before, least", min(shares), "≥", REUSED_MIN),
            Bar(f"turns, {way}: texts that differ", float(differ), "≤", 0.0),
        ]
    bars.append(
        Bar("turns: preemptions a conversation", figures["preempted"]["preemptions"] / count, "≥", 1.0)
    )
    return figures, bars
