"""Random numbers as a function of (seed, output index, stage, attempt), by Philox4x32-10 (Salmon, 2011).

Counter-based, so there is no state to save, copy or rewind: the same integers give the same number in
any process and in any order of calls. Stages keep the draws of one output index independent of each other.
"""

from __future__ import annotations

from enum import IntEnum

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


class Stage(IntEnum):
    """What a number is for."""

    DRAW = 0
    REDRAW = 1  # after the grammar refused the first token
    XTC = 2


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """One block of four 32-bit words."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * a, _M1 * c
        a, b, c, d = (p1 >> 32) ^ b ^ k0, p1 & _WORD, (p0 >> 32) ^ d ^ k1, p0 & _WORD
        k0, k1 = (k0 + _W0) & _WORD, (k1 + _W1) & _WORD
    return a, b, c, d


def uniform(seed: int, index: int, stage: Stage, attempt: int = 0) -> float:
    """A number in [0, 1) with 53 random bits. Of the seed the lower 64 bits count."""
    counter = (index & _WORD, (index >> 32) & _WORD, int(stage), attempt)
    high, low, _, _ = philox4x32(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return ((high << 21) | (low >> 11)) * 2.0**-53
