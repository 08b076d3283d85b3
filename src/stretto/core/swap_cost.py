"""What it costs to preempt a request and bring it back, and how much of the time that may take.

Saving and restoring are measured at load, but the first touch of fresh memory takes several times as long as
a copy, so the seconds of finished operations are believed instead. Everybody waits while a state is copied:
`SwapBudget` keeps the time spent so within a share of all time.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.core.ops import KvOp, OpKind, OpResult

WEIGHT = 0.1  # of a new measurement
CREDIT_S = 0.1  # that is saved up at most: a few swaps when several streams arrive together
_SAVES, _RESTORES = (OpKind.SAVE, OpKind.RESTORE)


class SwapCost:
    """Seconds for each byte saved and restored, as operations report them."""

    def __init__(self, bytes_per_s: float) -> None:
        self._s_per_byte = {_SAVES: 1.0 / bytes_per_s, _RESTORES: 1.0 / bytes_per_s}

    def swap_s(self, state_bytes: int) -> float:
        """Saving a state and restoring it."""
        return state_bytes * sum(self._s_per_byte.values())

    def observe(self, ops: Iterable[KvOp], results: Iterable[OpResult]) -> None:
        for op, result in zip(ops, results, strict=False):
            known = self._s_per_byte.get(op.kind)
            if known is not None and result.ok and result.bytes and result.seconds > 0.0:
                found = result.seconds / result.bytes
                self._s_per_byte[op.kind] = known + WEIGHT * (found - known)


class SwapBudget:
    """A share of the time. What was spent beyond it has to pass before more may be spent."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_s = CREDIT_S
        self._at_s: float | None = None

    def allows(self, now: float) -> bool:
        if self._at_s is not None:
            self._left_s = min(CREDIT_S, self._left_s + self._share * (now - self._at_s))
        self._at_s = now
        return self._left_s >= 0.0

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds
