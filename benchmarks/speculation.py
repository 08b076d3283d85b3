"""Measures speculation by lookup against plain decoding: the same texts, and how much faster or slower.

    python benchmarks/speculation.py [--json FILE] [--check] [--quick] [--users 1 2 4 8]

SmolLM2 through the SDK, greedy. Two models are loaded, with and without speculation, and asked alternately:
code edits (the answer repeats most of the prompt), summaries and chat, for 1 to 8 users at once. `--check`
exits 1 if speculation is slower than 0.98 times plain decoding in any case, if code edits of one user are not
at least 1.6 times as fast, or if a text differs. Draft models and llama-server are not part of it; `lora.py`
measures adapters.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stretto import LLM
from stretto.loadgen.conditions import cpu_name

USERS = (1, 2, 4, 8)
ROUNDS, QUICK_ROUNDS = 5, 2
TOKENS, QUICK_TOKENS = 96, 48
SLOWEST, EDIT_MIN = 0.98, 1.6
CODE = """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total = total + (value - center) ** 2
    return total / len(values)
"""
TEXT = (
    "The harbour of the town was built in 1820, when ships brought wool and salt. The railway came in 1871, "
    "and the ships went elsewhere. Today the harbour is a museum, and the museum has a hundred thousand "
    "visitors a year, most of them in summer. "
)
PROMPTS = {
    "edit": "Repeat this file unchanged, but call the function variance spread. File number {at}:\n" + CODE,
    "summary": "Summarize this text in three sentences, for reader {at}:\n" + TEXT * 2,
    "chat": "I am visitor number {at}. Tell me about a town by the sea, its harbour and its people.",
}

_numbers = itertools.count(1)


def ask(
    model: LLM, kind: str, users: int, tokens: int, first: int
) -> tuple[float, list[str], tuple[int, int]]:
    """Seconds for all answers, the texts, and drafts accepted of drafts verified.

    Prompts are numbered from `first`: an answer that was given before would be a perfect draft.
    """
    prompts = [PROMPTS[kind].format(at=at) for at in range(first, first + users)]
    began = time.perf_counter()
    answers = model.chat_many(prompts, max_tokens=tokens, temperature=0.0, ignore_eos=True)
    seconds = time.perf_counter() - began
    used = [answer.usage for answer in answers]
    drafts = (sum(usage.accepted_drafts for usage in used), sum(usage.proposed_drafts for usage in used))
    return seconds, [answer.text for answer in answers], drafts


def compared(plain: LLM, drafting: LLM, kind: str, users: int, *, rounds: int, tokens: int) -> dict[str, Any]:
    """Alternating rounds, the first of which warms both up. Ratios above 1: speculation is faster."""
    ratios, accepted, proposed, same = [], 0, 0, True
    rates: dict[str, list[float]] = {"off": [], "on": []}
    for at in range(rounds + 1):
        models = [("off", plain), ("on", drafting)]
        first = next(_numbers) * max(USERS)
        got = {
            name: ask(model, kind, users, tokens, first)
            for name, model in (models if at % 2 else models[::-1])
        }
        same = same and got["off"][1] == got["on"][1]
        if at:
            ratios.append(got["off"][0] / got["on"][0])
            accepted, proposed = accepted + got["on"][2][0], proposed + got["on"][2][1]
            for name, (seconds, _, _) in got.items():
                rates[name].append(users * tokens / seconds)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "tokens_per_s": {name: round(statistics.median(found), 1) for name, found in rates.items()},
        "accepted": accepted,
        "proposed": proposed,
        "same_texts": same,
    }


def missed(cases: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for name, case in cases.items():
        least = EDIT_MIN if name == "edit, 1 users" else SLOWEST
        if case["ratio"] < least:
            found.append(f"{name}: {case['ratio']} × plain decoding, at least {least} wanted")
        if not case["same_texts"]:
            found.append(f"{name}: speculation changed a text")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of shorter answers")
    parser.add_argument("--users", type=int, nargs="+", default=USERS)
    parser.add_argument("--kinds", nargs="+", choices=sorted(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--drafts", type=int, default=4, help="speculation_tokens")
    options = parser.parse_args()
    sizes = {
        "rounds": QUICK_ROUNDS if options.quick else ROUNDS,
        "tokens": QUICK_TOKENS if options.quick else TOKENS,
    }
    common: dict[str, Any] = {"n_seq_max": 8, "context_window": 1024, "kernels": "own"}
    drafting_settings = {"speculation": "ngram", "speculation_tokens": options.drafts}
    with LLM(**common) as plain, LLM(**common, **drafting_settings) as drafting:
        cases = {
            f"{kind}, {users} users": compared(plain, drafting, kind, users, **sizes)
            for kind in options.kinds
            for users in options.users
        }
    report = {"cpu": cpu_name(), **sizes, "speculation_tokens": options.drafts, "cases": cases}
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    bars = missed(cases)
    for bar in bars:
        print(f"missed: {bar}", file=sys.stderr)
    return int(options.check and bool(bars))


if __name__ == "__main__":
    sys.exit(main())
