"""Measures whether greedy text is identical under every cache policy and layout, and the cost of that.

    python -m benchmarks.parity [--quick] [--check] [--json FILE] [--cost] [--settings NAME …]

20 conversations of 4 turns, and a branch of each with an edit inside the last answer, run concurrently; the
reference is computed without a cache, one request at a time. Every prompt is built from the reference's
answers, so each answer is compared on its own. `--check`: exit 1 unless all answers in deterministic mode are
identical and that mode refuses unsupported settings. `--cost`: measure its cost instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import DeterminismError
from stretto.llm import LLM
from stretto.llm.results import Completion
from stretto.model_files.store import Store
from stretto.settings.places import cache_home
from stretto.worker.own_process import claim_process

POLICIES = ("none", "system_prompt", "incremental", "prefix")
SYSTEM = "You are a patient teacher who answers in short plain sentences and never makes things up. " * 3
SUBJECTS = (
    *("the sea", "bread", "maps", "prime numbers", "winter", "a violin", "bees", "glass", "Paris", "tea"),
    *("bridges", "salt", "clocks", "rivers", "wool", "the moon", "chess", "paper", "trains", "cats"),
)
TURNS = (
    "Tell me about {}.",
    "Why does that matter?",
    "Give an example, please.",
    "Now say all of it in one sentence.",
)
SLOTS = 4
ANSWER_TOKENS = 24
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Setting:
    """`promised`: texts must be identical. `refused`: the model must not load."""

    name: str
    options: dict[str, Any]
    promised: bool = False
    refused: bool = False


@dataclass(slots=True)
class ParityTally:
    setting: str
    promised: bool
    answers: int = 0
    identical: int = 0
    cached_tokens: int = 0
    first_difference: str = ""
    refused: str = ""
    seconds: float = 0.0
    held: bool = True


@dataclass(slots=True)
class ParityConversation:
    """The messages of each turn, with the reference's answers in between."""

    asked: list[Messages] = field(default_factory=list)
    expected: list[tuple[int, ...]] = field(default_factory=list)
    answer_tokens: int = ANSWER_TOKENS


def settings(*, quick: bool) -> Iterator[Setting]:
    """With attention `off`, decode rows use kernels with different rounding on every CPU."""
    for attention, policy in itertools.product(("auto", "off"), POLICIES):
        options = {"cache": policy, "flash_attention": attention, "deterministic": True}
        yield Setting(f"deterministic, attention {attention}, {policy}", options, promised=True)
    pool = {"kv_layout": "unified", "deterministic": True}
    yield Setting("deterministic, unified", pool, refused=True)
    small = {"cache": "prefix", "flash_attention": "off", "deterministic": True, "cache_ram_bytes": 0}
    yield Setting(
        "deterministic, time slices, no room for states", small | {"slice_tokens": 4}, promised=True
    )
    if quick:
        return
    for attention, policy in itertools.product(("auto", "off"), POLICIES):
        yield Setting(
            f"default, attention {attention}, {policy}", {"cache": policy, "flash_attention": attention}
        )
    for policy in POLICIES:
        yield Setting(f"default, unified, {policy}", {"cache": policy, "kv_layout": "unified"})


def opened(path: Path, options: dict[str, Any], threads: int) -> LLM:
    fixed = {"n_seq_max": SLOTS, "context_window": 1024, "queue_depth": 32}
    return LLM(path, **fixed | ({"n_threads": threads} if threads else {}) | options)


def greedy(llm: LLM, messages: Messages, tokens: int) -> Completion:
    return llm.stream(messages, max_tokens=tokens, temperature=0, top_k=0, top_p=1.0, min_p=0.0).read()


def reference(
    path: Path, attention: str, count: int, turns: int, threads: int, tokens: int = ANSWER_TOKENS
) -> list[ParityConversation]:
    """Without a cache, one request at a time."""
    options = {"cache": "none", "flash_attention": attention, "deterministic": True}
    with opened(path, options, threads) as llm:
        return [_reference_of(llm, subject, turns, tokens) for subject in SUBJECTS[:count]]


def _reference_of(llm: LLM, subject: str, turns: int, tokens: int) -> ParityConversation:
    made = ParityConversation(answer_tokens=tokens)
    messages: Messages = [{"role": "system", "content": SYSTEM}]
    for turn in TURNS[:turns]:
        messages = [*messages, {"role": "user", "content": turn.format(subject)}]
        answer = greedy(llm, messages, tokens)
        made.asked.append(messages)
        made.expected.append(answer.tokens)
        messages = [*messages, {"role": "assistant", "content": answer.text}]
    half = messages[-1]["content"][: len(messages[-1]["content"]) // 2]  # diverges inside the answer
    edited = [*messages[:-1], {"role": "assistant", "content": half}, {"role": "user", "content": "Go on."}]
    made.asked.append(edited)
    made.expected.append(greedy(llm, edited, tokens).tokens)
    return made


def ask_all(llm: LLM, conversations: Sequence[ParityConversation]) -> list[list[Completion]]:
    """All conversations concurrently, each turn after the previous one."""

    def hold(conversation: ParityConversation) -> list[Completion]:
        return [greedy(llm, messages, conversation.answer_tokens) for messages in conversation.asked]

    with ThreadPoolExecutor(len(conversations)) as pool:
        return list(pool.map(hold, conversations))


def compare(
    path: Path, setting: Setting, conversations: Sequence[ParityConversation], threads: int
) -> ParityTally:
    tally, started = ParityTally(setting.name, setting.promised), time.monotonic()
    try:
        with opened(path, setting.options, threads) as llm:
            answers = ask_all(llm, conversations)
    except DeterminismError as error:
        tally.refused, tally.held = error.message, setting.refused
        return tally
    for conversation, got in zip(conversations, answers, strict=True):
        for turn, (want, answer) in enumerate(zip(conversation.expected, got, strict=True)):
            tally.answers += 1
            tally.cached_tokens += answer.usage.cached_tokens
            tally.identical += answer.tokens == want
            if answer.tokens != want and not tally.first_difference:
                pairs = zip(answer.tokens, want, strict=False)
                at = next((i for i, (a, b) in enumerate(pairs) if a != b), "the end")
                tally.first_difference = f"turn {turn + 1}, token {at}"
    tally.seconds = round(time.monotonic() - started, 1)
    tally.held = not setting.refused and (not setting.promised or tally.identical == tally.answers)
    return tally


# --- cost ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimedRun:
    """`ttft_s`: the median of later turns. CPU time is comparable on a busy machine too."""

    ttft_s: float
    tokens_per_s: float
    cpu_ms_per_token: float
    computed_tokens: int  # of prompts


def cost(
    path: Path,
    conversations: Sequence[ParityConversation],
    attentions: Sequence[str],
    *,
    repeats: int,
    threads: int,
) -> dict[str, Any]:
    """Deterministic mode against default mode, alternating, as ratios of pairs."""
    found: dict[str, Any] = {}
    for attention in attentions:
        runs: dict[bool, list[TimedRun]] = {False: [], True: []}
        for _, deterministic in itertools.product(range(repeats), (False, True)):
            options = {"flash_attention": attention, "deterministic": deterministic}
            with opened(path, options, threads) as llm:
                ask_all(
                    llm, conversations[-1:]
                )  # trains the cost model; the timed conversations are not cached yet
                runs[deterministic].append(_timed(llm, conversations[:-1]))
        pairs = list(zip(runs[False], runs[True], strict=True))
        found[f"attention {attention}"] = {
            "off": [asdict(run) for run in runs[False]],
            "on": [asdict(run) for run in runs[True]],
        } | {
            f"{name}_ratio": _spread([getattr(on, name) / getattr(off, name) for off, on in pairs])
            for name in ("ttft_s", "tokens_per_s", "cpu_ms_per_token", "computed_tokens")
        }
    return found


def _timed(llm: LLM, conversations: Sequence[ParityConversation]) -> TimedRun:
    started, cpu = time.monotonic(), time.process_time()
    answers = [answer for got in ask_all(llm, conversations) for answer in got]
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    tokens = sum(len(answer.tokens) for answer in answers)
    later = [
        a.timing.ttft_s or 0.0 for a in answers if a.usage.prompt_tokens > answers[0].usage.prompt_tokens
    ]
    computed = sum(a.usage.prompt_tokens - a.usage.cached_tokens for a in answers)
    return TimedRun(
        round(statistics.median(later), 4), round(tokens / seconds, 1), round(cpu * 1e3 / tokens, 2), computed
    )


def _spread(ratios: list[float]) -> dict[str, float]:
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    return {"median": round(middle, 3), "min": round(low, 3), "max": round(high, 3)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="3 conversations of 2 turns, deterministic mode only"
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cost", action="store_true", help="measure the cost of deterministic mode")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--model", type=Path)
    parser.add_argument(
        "--settings",
        nargs="*",
        default=[],
        help="only settings whose name contains one of these; with --cost: auto, off",
    )
    parser.add_argument("--conversations", type=int)
    parser.add_argument("--answer-tokens", type=int, default=ANSWER_TOKENS)
    parser.add_argument("--json")
    return parser


def _line(tally: ParityTally) -> str:
    what = f"refused: {tally.refused}" if tally.refused else f"{tally.identical} of {tally.answers} identical"
    where = f", first difference in {tally.first_difference}" if tally.first_difference else ""
    return f"{tally.setting}: {what}{where}, {tally.seconds} s{'' if tally.held else ', NOT HELD'}"


def main(arguments: list[str] | None = None) -> int:
    claim_process()
    options = _parser().parse_args(arguments)
    path = options.model or Store(cache_home()).ensure_default()
    count = options.conversations or (3 if options.quick else len(SUBJECTS))
    turns = 2 if options.quick else len(TURNS)
    report: dict[str, Any] = {"model": path.name, "machine": platform.machine(), "conversations": count}
    references: dict[str, list[ParityConversation]] = {}

    def expected(attention: str) -> list[ParityConversation]:
        if attention not in references:
            references[attention] = reference(
                path, attention, count, turns, options.threads, options.answer_tokens
            )
        return references[attention]

    held = True
    if options.cost:
        report["cost"] = cost(
            path,
            expected("auto"),
            options.settings or ("auto", "off"),
            repeats=options.repeats,
            threads=options.threads,
        )
        print(json.dumps(report["cost"], indent=1))
    else:
        tallies = []
        for setting in settings(quick=options.quick):
            if options.settings and not any(part in setting.name for part in options.settings):
                continue
            base = expected(setting.options.get("flash_attention", "auto"))
            tally = compare(path, setting, base, options.threads)
            tallies.append(asdict(tally))
            print(_line(tally), flush=True)
        held = all(tally["held"] for tally in tallies)
        report |= {"held": held, "settings": tallies}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
