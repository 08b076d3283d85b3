"""What is decided by measurement: the questions, their candidates, and what each probe weighs. Data only.

Candidates keep batch invariance; flash attention in tiles is none, because its sums follow the chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.backends.llamacpp.attention import Attention
from stretto.backends.llamacpp.choices.decision import Question

DECODE_SHORT, DECODE_LONG = "decode", "decode, long context"  # a pass with a row of each sequence
CHUNK_SHORT, CHUNK_LONG = "prefill", "prefill, long context"  # a row of a prompt
ONE_ROW, THREE_ROWS = "one row", "three rows"

ATTENTION = "attention of slots"
LONG_PROMPTS = "long prompts"
THREADS_DECODE = "threads for decode"
THREADS_PREFILL = "threads for prefill"
KERNELS = "kernels"
PAD_TO_FOUR = "pad to four rows"

SIDE_CONTEXT, IN_SLOTS = "side context", "slots"
OWN, LLAMACPP = "own", "llamacpp"
NO, YES = "no", "yes"


def attention(candidates: Sequence[Attention], *, has_long: bool) -> Question:
    """Streams wait for every decode pass and once for their prompt; most contexts are short."""
    weights = {DECODE_SHORT: 0.35, CHUNK_SHORT: 0.25}
    if has_long:
        weights |= {DECODE_LONG: 0.25, CHUNK_LONG: 0.15}
    slots = tuple(dict.fromkeys(one.slots for one in candidates))
    return Question(name=ATTENTION, candidates=slots, weights=weights)


def long_prompts(candidates: Sequence[Attention], slots: str) -> Question:
    """A side context also pauses between layers, which slots do not: it must not be clearly slower."""
    kinds = dict.fromkeys(
        SIDE_CONTEXT if one.side_context else IN_SLOTS for one in candidates if one.slots == slots
    )
    return Question(name=LONG_PROMPTS, candidates=tuple(kinds), weights={CHUNK_LONG: 1.0}, clearly=0.95)


def threads_decode(counts: Sequence[int]) -> Question:
    weights = {DECODE_SHORT: 0.5, ONE_ROW: 0.5}
    return Question(name=THREADS_DECODE, candidates=tuple(map(str, counts)), weights=weights, clearly=0.95)


def threads_prefill(counts: Sequence[int]) -> Question:
    weights = {CHUNK_SHORT: 1.0}
    return Question(name=THREADS_PREFILL, candidates=tuple(map(str, counts)), weights=weights, clearly=0.95)


def kernels() -> Question:
    """Ours are loaded for the whole process, and attention by them needs no padding of lone rows."""
    weights = {DECODE_SHORT: 0.6, CHUNK_SHORT: 0.4}
    return Question(name=KERNELS, candidates=(OWN, LLAMACPP), weights=weights, clearly=0.95)


def pad_to_four() -> Question:
    """`yes` runs four rows where three are asked for, and eight for seven: dear where rows have a price."""
    return Question(name=PAD_TO_FOUR, candidates=(NO, YES), weights={THREE_ROWS: 1.0}, clearly=0.95)


def thread_counts(threads: int, *, fixed: bool) -> tuple[int, ...]:
    """All processors or half of them: two hardware threads of one core rarely help."""
    return (threads,) if fixed or threads < 2 else (threads, max(1, threads // 2))
