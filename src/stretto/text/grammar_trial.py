"""What a grammar costs: compiled, masked and walked for a few tokens, with each part's processor time.

Runs where it may be killed (`runtime.grammar_server` forks a process for each grammar), with the vocabulary
and the limits that the worker uses. A grammar that passes costs the worker no more than what was measured
here.
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

COMPILE_S_MAX = 1.0  # of processor time: the worker spends it once more
STEER_S_MAX = 0.25
LIMIT_TOKENS = 8192
WALKS = 2
STEPS = 24  # of one walk
WALKS_S_MAX = 0.5
PICKS = 8  # bytes of a mask that are looked at before it is searched from its start


def trial(factory: GrammarFactory, grammar: str) -> float:
    """The seconds that compiling took. Raises the typed error that the request is answered with."""
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
    """The shortest text that the grammar allows is looked for when a request gets its slot: within a tick."""
    began_s = time.process_time()
    factory.matcher(grammar).limit(LIMIT_TOKENS)
    took_s = time.process_time() - began_s
    if took_s > STEER_S_MAX:
        raise GrammarTooComplexError(f"the shortest text of the grammar takes {took_s:.1f} s to find")


def _walk(matcher: LLMatcher, rng: random.Random, ends: frozenset[int], ends_s: float) -> None:
    """Tokens that the grammar allows, one after the other. A step that takes too long ends the trial."""
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
    """Some token of a mask: one bit for each, least significant first."""
    for _ in range(PICKS):
        at = rng.randrange(len(mask))
        if mask[at]:
            return _bit(mask, at, rng)
    at = next((index for index, bits in enumerate(mask) if bits), -1)
    return None if at < 0 else _bit(mask, at, rng)


def _bit(mask: bytes, at: int, rng: random.Random) -> int:
    return at * 8 + rng.choice([bit for bit in range(8) if mask[at] >> bit & 1])
