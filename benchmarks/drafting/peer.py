"""Stretto beside llama-server over HTTP, both with the same drafter: closed loops in alternating rounds."""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.drafting.prompts import Prompt
from benchmarks.drafting.users import Load
from stretto.loadgen.known_peers import Serving, llama_server, stretto
from stretto.loadgen.peers import Peer, serving


class Flags(NamedTuple):
    """What makes either server draft."""

    own: Sequence[str] = ("--speculation", "ngram")
    peer: Sequence[str] = ("--spec-type", "ngram-simple")  # its own defaults: 12 tokens match, 48 are drafted


LOOKUP = Flags()


def with_draft_model(draft: Path) -> Flags:
    return Flags(("--draft-model", str(draft), "--speculation", "ngram"), ("--model-draft", str(draft)))


def compared(
    binary: Path,
    model: Path,
    cases: Sequence[tuple[str, int]],
    *,
    rounds: int,
    tokens: int,
    flags: Flags = LOOKUP,
) -> dict[str, dict[str, Any]]:
    """For each kind and number of users: tokens per second of both, and ours over theirs."""
    common = Serving(model=model, slots=8, window=1024)
    peers = {
        "stretto": stretto(common, flags.own),
        "llama-server": _speculating(binary, common, flags.peer),
    }
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {name: stack.enter_context(serving(peer, logs)) for name, peer in peers.items()}
        first = 0
        for kind, users in cases:
            rates: dict[str, list[float]] = {name: [] for name in urls}
            for at in range(rounds + 1):  # the first warms up, with shorter answers
                for name, url in urls.items() if at % 2 else [*urls.items()][::-1]:
                    rate = _rate(url, Load(kind, users, tokens if at else tokens // 2, first))
                    if at:
                        rates[name].append(rate)
                first += 2 * users
            middle = {name: round(median(seen), 1) for name, seen in rates.items()}
            ratios = [a / b for a, b in zip(rates["stretto"], rates["llama-server"], strict=True)]
            found[f"{kind}, {users} users"] = {"ratio": round(median(ratios), 3), "tokens_per_s": middle}
    return found


def _speculating(binary: Path, common: Serving, flags: Sequence[str]) -> Peer:
    plain = llama_server(binary, common)
    return replace(plain, command=lambda port: [*plain.command(port), *flags])


def _rate(url: str, load: Load) -> float:
    """Each user asks twice."""
    counts: list[int] = []

    def user(number: int) -> None:
        counts.extend(_ask(url, *load.call(at)) for at in (number, number + load.users))

    threads = [threading.Thread(target=user, args=(load.first + number,)) for number in range(load.users)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _ask(url: str, asked: Prompt, options: dict[str, Any]) -> int:
    path = "completions" if asked.raw else "chat/completions"
    text = {"prompt": asked.text} if asked.raw else {"messages": [{"role": "user", "content": asked.text}]}
    call = urllib.request.Request(
        f"{url}/v1/{path}", json.dumps({**text, **options}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=300) as reply:
        return int(json.load(reply)["usage"]["completion_tokens"])
