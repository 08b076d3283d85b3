"""Attacks by clients that never read their responses."""

from __future__ import annotations

from benchmarks.attack.connections import hold, opened
from benchmarks.attack.registry import AttackTarget, attack


@attack("unread-streams", "four streams of maximum length whose clients never read")
async def unread_streams(target: AttackTarget) -> None:
    body = target.chat("Tell me a long story.", stream=True, max_tokens=4000, ignore_eos=True)
    await hold(await opened(target, [target.request("/v1/chat/completions", body)] * 4), 5.0)


@attack("unread-pages", "connections_max downloads of the dashboard that are never read, without a key")
async def unread_pages(target: AttackTarget) -> None:
    page = target.head("GET", "/dashboard/main.js") * 4
    await hold(await opened(target, [page] * target.connections_max))
