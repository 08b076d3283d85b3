"""Measures what a grammar costs: compiles it, computes masks and takes a few tokens, timing each step.

Runs in a process that may be killed (`worker.grammar_server` forks one per grammar), with the worker's
vocabulary and limits. A grammar that passes costs the worker no more than measured here.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from stretto.errors import GrammarTooComplexError
from stretto.text.grammar import STEP_S_MAX

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from stretto.text.grammar_factory import GrammarFactory

COMPILE_S_MAX = 1.0  # of CPU time: the worker spends it once more
STEER_S_MAX = 0.25
LIMIT_TOKENS = 8192
WALKS = 2
STEPS = 24  # per walk
WALKS_S_MAX = 0.5
PICKS = 8  # random bytes of a mask tried before searching from its start


def trial(factory: GrammarFactory, grammar: str) -> float:
    """Returns the seconds that compiling took. Raises the typed error for the request."""
    began_s = time.process_time()
    matcher = factory.compile(grammar).fresh
    compile_s = time.process_time() - began_s
    if compile_s > COMPILE_S_MAX:
        raise GrammarTooComplexError(f"the grammar takes {compile_s:.1f} s to compile")
    ends_s = time.process_time() + WALKS_S_MAX
    _steered(factory, grammar)
    for seed in range(WALKS):
        _walk(matcher.deep_copy(), random.Random(seed), factory.eos, ends_s)  # noqa: S311 (not a secret)
    return compile_s


def _steered(factory: GrammarFactory, grammar: str) -> None:
    """Times the search for the shortest text, which runs within a tick when a request gets its slot."""
    began_s = time.process_time()
    factory.matcher(grammar).limit(LIMIT_TOKENS)
    took_s = time.process_time() - began_s
    if took_s > STEER_S_MAX:
        raise GrammarTooComplexError(f"the shortest text of the grammar takes {took_s:.1f} s to find")


def _walk(matcher: LLMatcher, rng: random.Random, ends: frozenset[int], ends_s: float) -> None:
    """Takes allowed tokens one after the other. A step that takes too long ends the trial."""
    for _ in range(STEPS):
        began_s = time.process_time()
        mask = matcher.compute_bitmask()
        token = _allowed(mask, rng)
        if matcher.is_error():
            raise GrammarTooComplexError("the grammar costs too much within its first tokens")
        if token is None or token in ends or matcher.try_consume_tokens([token]) != 1:
            return
        now_s = time.process_time()
        if now_s - began_s > STEP_S_MAX:
            raise GrammarTooComplexError(f"the grammar takes {now_s - began_s:.2f} s for one token")
        if matcher.is_stopped() or now_s > ends_s:
            return


def _allowed(mask: bytes, rng: random.Random) -> int | None:
    """A random token of a mask, which has one bit per token, least significant first."""
    for _ in range(PICKS):
        at = rng.randrange(len(mask))
        if mask[at]:
            return _bit(mask, at, rng)
    at = next((index for index, bits in enumerate(mask) if bits), -1)
    return None if at < 0 else _bit(mask, at, rng)


def _bit(mask: bytes, at: int, rng: random.Random) -> int:
    return at * 8 + rng.choice([bit for bit in range(8) if mask[at] >> bit & 1])
