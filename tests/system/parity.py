"""Greedy text through Stretto against a plain llama.cpp loop, under every setting that must not change it.

    python -m tests.system.parity [--full] [--workers N] [--json FILE] [--check]

A different token counts as equal only if its reference logit, teacher-forced on the same prefix, is within
0.05 of the maximum; at least 45 of 50 prompts must be identical to the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from stretto.backends.llamacpp.kernels import support
from stretto.backends.llamacpp.kernels.interpose import attention_heads, disabled
from stretto.backends.llamacpp.kernels.probe import special_buffers_work
from stretto.backends.llamacpp.native.library import half_precision
from stretto.errors import ServerBusyError
from stretto.llm import LLM
from stretto.llm.results import Completion
from stretto.model_files.store import Store
from stretto.settings.places import cache_home
from tests.system.plain_loop import PlainLoop

TOLERANCE = 0.05
IDENTICAL_MIN = 0.9
OUTPUT = 16
# Attention of slots, where a setting does not say.
EXPECTED = "rows" if half_precision() or attention_heads() else "long"
THREADS = 1  # tests share their cores: threads that wait for each other are slow there
SUBJECTS = (
    "the sea",
    "a red bicycle",
    "prime numbers",
    "Paris",
    "bread",
    "winter",
    "a robot",
    "tea",
    "maps",
    "cats",
)
ASKS = (
    "Write one sentence about {}.",
    "Why do people like {}?",
    "List three facts about {}.",
    "Tell a very short story in which {} plays a part, and say how it ends.",
    "Explain {} to a child of five.",
)
SYSTEM = (
    "You are a helpful assistant who answers briefly, kindly and truthfully, and who never makes things up. "
)


def conversations(count: int) -> list[list[dict[str, str]]]:
    pairs = itertools.product(ASKS, SUBJECTS)
    asked = [ask.format(subject) for ask, subject in itertools.islice(pairs, count)]
    return [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}] for text in asked]


GREEDY = {"max_tokens": OUTPUT, "temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(slots=True)
class Tally:
    setting: str
    identical: int = 0
    tolerated: int = 0
    wrong: list[str] = field(default_factory=list)
    preemptions: int = 0
    accepted_drafts: int = 0
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        total = self.identical + self.tolerated + len(self.wrong)
        return total > 0 and not self.wrong and self.identical >= IDENTICAL_MIN * total


def settings(*, full: bool) -> Iterator[tuple[str, dict[str, object]]]:
    chunks = (1, 7, 64, 512) if full else (7, 512)
    policies = ("none", "system_prompt", "incremental", "prefix") if full else ("none", "prefix")
    for slots, cache, chunk in itertools.product((1, 8), policies, chunks):
        yield (
            f"slots {slots}, cache {cache}, chunk {chunk}",
            {"n_seq_max": slots, "cache": cache, "prefill_chunk": chunk},
        )
    drafts = {"n_seq_max": 8, "cache": "prefix", "speculation": "ngram"}
    yield "speculation", drafts
    yield "speculation, llama.cpp's kernels", drafts | {"flash_attention": "auto", "kernels": "llamacpp"}
    yield "speculation, declined", drafts | {"flash_attention": "long"}
    yield "preemption forced", {"n_seq_max": 2, "cache": "incremental", "cache_slot_timeout": 0.05}
    yield "time slices of four tokens", {"n_seq_max": 4, "slice_tokens": 4, "queue_depth": 16}
    yield from choices_of_auto()


def choices_of_auto() -> Iterator[tuple[str, dict[str, object]]]:
    """Every combination of attention and kernels that auto may choose, and other threads for prefill."""
    for attention, kernels in itertools.product(("rows", "long"), ("own", "llamacpp")):
        given = {"n_seq_max": 8, "flash_attention": attention, "kernels": kernels}
        yield f"attention {attention}, kernels {kernels}", given
    yield "one thread for decode, two for prefill", {"n_seq_max": 8, "n_threads": 1, "n_threads_batch": 2}
    yield "auto, as measured here", {"n_seq_max": 8, "flash_attention": "auto"}


def compare(tally: Tally, loop: PlainLoop, prompt: list[int], expected: list[int], got: list[int]) -> None:
    if got == expected:
        tally.identical += 1
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    if at >= len(got):
        tally.wrong.append(f"ended after {at} tokens, before the reference")
        return
    margin = loop.margin(prompt + got[:at], got[at])
    if margin <= TOLERANCE:
        tally.tolerated += 1
    else:
        tally.wrong.append(f"token {at}: {margin:.3f} below the maximum")


def ask_all(llm: LLM, asked: list[list[dict[str, str]]]) -> list[Completion]:
    """All at once, and streamed, so that they may be time-sliced.

    With a time-out short enough to force preemption, all slots may be prefilling for that long, and waiting
    requests are rejected, as documented; such a client retries.
    """

    def ask(messages: list[dict[str, str]]) -> Completion:
        while True:
            try:
                return llm.stream(messages, **GREEDY).read()
            except ServerBusyError:
                time.sleep(0.02)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


def run(count: int, *, full: bool, path: Path, share: int = 0, of: int = 1) -> list[Tally]:
    """Every setting, or one share of the settings."""
    asked = conversations(count)
    with LLM(path, n_seq_max=1, context_window=1024, n_threads=THREADS) as llm:
        prompts = [list(llm.chat_prompt_tokens(messages)) for messages in asked]
    loops = {kind: _plain_loop(path, kind) for kind in ("rows", "own rows", "long", "own long")}
    wanted = {kind: [loop.greedy(prompt, OUTPUT) for prompt in prompts] for kind, loop in loops.items()}
    tallies = []
    for name, options in itertools.islice(settings(full=full), share, None, of):
        given = {"context_window": 1024, "n_threads": THREADS, "flash_attention": EXPECTED} | options
        with _kernels(str(options.get("kernels", "own"))), LLM(path, **given) as llm:
            kind = _reference(llm)
            loop, expected = loops[kind], wanted[kind]
            for state in ("cold", "warm"):
                started = time.monotonic()
                answers = ask_all(llm, asked)
                tally = Tally(f"{name}, {state}")
                for prompt, want, answer in zip(prompts, expected, answers, strict=True):
                    compare(tally, loop, prompt, want, list(answer.tokens))
                    tally.preemptions += answer.preemptions
                    tally.accepted_drafts += answer.usage.accepted_drafts
                tally.seconds = time.monotonic() - started
                tallies.append(tally)
                print(
                    f"{tally.setting}: {tally.identical} identical, {tally.tolerated} within {TOLERANCE}, "
                    f"{len(tally.wrong)} wrong, {tally.preemptions} preemptions, {tally.seconds:.1f} s",
                    flush=True,
                )
    for loop in loops.values():
        loop.close()
    return tallies


def _plain_loop(path: Path, kind: str) -> PlainLoop:
    return PlainLoop(
        str(path),
        special_buffers=special_buffers_work(cache_home()),
        row_attention=kind.endswith("rows"),
        own_kernels=kind.startswith("own"),
        threads=THREADS,
    )


def _reference(llm: LLM) -> str:
    """The loop that computes as this model does: our x86 kernels have their own bits, ARM llama.cpp's."""
    family = support.family()
    own = family is not None and not family.same_bits and attention_heads()
    attention = "rows" if llm.description["quirks"]["row_attention"] else "long"
    return f"own {attention}" if own else attention


def _kernels(whose: str) -> AbstractContextManager[None]:
    """Ours were loaded with the reference: they pass every call on to llama.cpp's meanwhile."""
    return disabled() if whose == "llamacpp" else nullcontext()


def run_shares(count: int, *, full: bool, path: Path, workers: int) -> list[Tally]:
    """The settings distributed over processes with one thread each, so that none waits for another."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        shares = [
            pool.submit(run, count, full=full, path=path, share=share, of=workers) for share in range(workers)
        ]
        return [tally for share in shares for tally in share.result()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="50 prompts, every policy and chunk size")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the settings")
    parser.add_argument("--json")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    path = Store(cache_home()).ensure_default()
    count = 50 if options.full else 10
    tallies = run_shares(count, full=options.full, path=path, workers=options.workers)
    held = bool(tallies) and all(tally.held for tally in tallies)
    if options.json:
        rows = [
            {
                "setting": t.setting,
                "identical": t.identical,
                "tolerated": t.tolerated,
                "wrong": t.wrong,
                "preemptions": t.preemptions,
            }
            for t in tallies
        ]
        Path(options.json).write_text(
            json.dumps({"held": held, "settings": rows}, indent=1) + "\n", encoding="utf-8"
        )
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
